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

let serial = 0;

/** A choice among the steps of extra memory; empty where there is only one. */
function buildChoice(steps, chosen, onChoose) {
  if (steps.length < 2) return "";
  serial += 1;
  const options = steps.map((words, at) => {
    const input = element("input", { type: "radio", name: `ss-step-${serial}`, value: String(at) });
    input.checked = at === chosen;
    input.addEventListener("change", () => onChoose(at));
    // The notebook has meanings of its own for the arrows that move among these.
    input.addEventListener("keydown", (event) => event.stopPropagation());
    return element("label", {}, input, ` ${words}`);
  });
  return element("fieldset", { class: "ss-choice" }, element("legend", {}, "Step of extra memory"), ...options);
}

function render({ model, el }) {
  replaceFallback(model);
  const root = element("div", { class: "ss-widget", "data-lm-suppress-shortcuts": "true" });
  const report = element("div", {});
  const show = (at) => {
    report.replaceChildren(...adopted(model.get("contents")[at]));
    report.querySelectorAll("svg").forEach(walkable);
  };
  const choice = buildChoice(model.get("steps"), model.get("chosen"), show);
  root.append(element("div", { class: "ss" }, choice), report);
  show(model.get("chosen"));
  el.append(root);
}

export default { render };
