// The report within a notebook: its pictures can be walked through by keyboard, and the amount of memory chosen.

/** The cells of a heat map as a grid that arrows move in; the cell's name goes to the line below. */
function walkable(picture) {
  const cells = [...picture.querySelectorAll("g.ss-cell")];
  if (!cells.length) return;
  const rowOf = (cell) => cell.querySelector("rect").getAttribute("y");
  const columnOf = (cell) => Number(cell.querySelector("rect").getAttribute("x"));
  const rows = [...new Set(cells.map(rowOf))];
  const line = element("p", { class: "ss-muted", role: "status", "aria-live": "polite" }, "Arrows move through the cells.");
  const grid = shape("g", { role: "grid", "aria-label": picture.getAttribute("aria-label") });
  const groups = rows.map((_, at) => shape("g", { role: "row", "aria-rowindex": String(at + 1) }));
  picture.setAttribute("role", "group");
  grid.append(...groups);
  picture.append(grid);
  for (const cell of cells) {
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("aria-label", cell.querySelector("title").textContent);
    groups[rows.indexOf(rowOf(cell))].append(cell);
  }
  const vertical = (step) => (at) => {
    const wanted = rows[rows.indexOf(rowOf(cells[at])) + step];
    const found = cells.findIndex((cell) => rowOf(cell) === wanted && columnOf(cell) === columnOf(cells[at]));
    return found < 0 ? at : found;
  };
  const name = (at) => line.replaceChildren(cells[at].getAttribute("aria-label"));
  roving(cells, { onFocus: name, jumps: { ArrowDown: vertical(1), ArrowUp: vertical(-1) } });
  cells.forEach((cell, at) => cell.addEventListener("mouseenter", () => name(at)));
  picture.closest("figure").append(line);
}

function render({ model, el }) {
  replaceFallback(model);
  const root = element("div", { class: "ss-widget", "data-lm-suppress-shortcuts": "true" });
  root.append(...adopted(model.get("content")));
  root.querySelectorAll("svg").forEach(walkable);
  el.append(root);
}

export default { render };
