// What the views have in common. Model text is only ever set as text, never parsed as HTML.

export const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text nodes. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** An element of a picture. */
export function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The bytes of a trait, copied so that they are aligned. */
export function bytes(view) {
  return new Uint8Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

export const integers = (view) => new Int32Array(bytes(view).buffer);
export const floats = (view) => new Float32Array(bytes(view).buffer);

/** Strings that were joined by NUL. */
export function strings(view) {
  const whole = bytes(view);
  return whole.length ? new TextDecoder().decode(whole).split("\0") : [];
}

/** A share in per cent; a dash for what is not a number. */
export const percent = (share, digits = 1) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : "–");

/** A table of plain texts; the first cell of each row is its heading. */
export function table(caption, head, rows) {
  const heading = element("tr", {}, ...head.map((title) => element("th", { scope: "col" }, title)));
  const body = rows.map((cells) =>
    element("tr", {}, ...cells.map((cell, at) => element(at ? "td" : "th", at ? { class: "ss-n" } : { scope: "row" }, cell))),
  );
  return element(
    "table",
    {},
    element("caption", {}, caption),
    element("thead", {}, heading),
    element("tbody", {}, ...body),
  );
}

/** HTML from the kernel as nodes, with whatever could act taken out: a notebook's state may come from anybody. */
export function adopted(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  parsed.querySelectorAll("script,iframe,object,embed,link,base,meta,form,style").forEach((each) => each.remove());
  parsed.querySelectorAll("*").forEach((each) => {
    for (const { name } of [...each.attributes]) {
      if (/^on|^(src|srcset|href|xlink:href|action|formaction)$/i.test(name)) each.removeAttribute(name);
    }
  });
  return [...parsed.body.childNodes];
}

/** Removes the page that stands in for this view where no widget runs. */
export function replaceFallback(model) {
  document.getElementById(model.get("fallback_id"))?.remove();
}

/** The one element of a group that Tab reaches moves with the arrows. */
export function roving(items, { onEnter, onEscape, onFocus, jumps = {} }) {
  let current = 0;
  const focus = (index) => {
    const next = Math.max(0, Math.min(items.length - 1, index));
    items[current]?.setAttribute("tabindex", "-1");
    current = next;
    items[current]?.setAttribute("tabindex", "0");
    items[current]?.focus();
  };
  const steps = {
    ArrowRight: () => current + 1,
    ArrowLeft: () => current - 1,
    Home: () => 0,
    End: () => items.length - 1,
    ...Object.fromEntries(Object.entries(jumps).map(([key, jump]) => [key, () => jump(current)])),
  };
  const onKey = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in steps) focus(steps[event.key]());
    else if (event.key === "Enter" || event.key === " ") onEnter?.(current);
    else if (event.key === "Escape") onEscape?.();
    else return;
    // The notebook has meanings of its own for these keys.
    event.preventDefault();
    event.stopPropagation();
  };
  items.forEach((item, index) => {
    item.setAttribute("tabindex", index ? "-1" : "0");
    item.addEventListener("keydown", onKey);
    item.addEventListener("focus", () => {
      items[current]?.setAttribute("tabindex", "-1");
      current = index;
      item.setAttribute("tabindex", "0");
      onFocus?.(index);
    });
  });
  return { focus, at: () => current };
}
