// The text coloured by depth, the card of a token, the rounds, and the map of layers by tokens.

const FATES = ["first", "accepted", "corrected", "bonus", "plain"];
const CELL = 13;
const SQUARE = 10;

/** Everything the kernel sent, decoded once. */
function readTrace(model) {
  const numLayers = model.get("num_layers");
  const texts = strings(model.get("texts"));
  const rounds = integers(model.get("rounds"));
  return {
    numLayers,
    numTokens: texts.length,
    exitLayer: model.get("exit_layer"),
    texts,
    ids: integers(model.get("ids")),
    depths: integers(model.get("depths")),
    classes: strings(model.get("depth_classes")),
    fates: bytes(model.get("fates")),
    roundOf: integers(model.get("round_of")),
    draftProbs: floats(model.get("draft_probs")),
    targetProbs: floats(model.get("target_probs")),
    agree: bytes(model.get("agree")),
    rounds: Array.from({ length: rounds.length / 4 }, (_, n) => ({
      start: rounds[4 * n],
      tokens: rounds[4 * n + 1],
      drafted: rounds[4 * n + 2],
      accepted: rounds[4 * n + 3],
    })),
  };
}

/** Whether the model would already have said token t after layer l + 1; bits are packed layer by layer. */
function agrees(trace, layer, token) {
  const stride = Math.ceil(trace.numTokens / 8);
  return (trace.agree[layer * stride + (token >> 3)] >> (7 - (token & 7))) & 1;
}

const depthWords = (trace, at) =>
  trace.depths[at] > trace.numLayers ? "never the likeliest" : `settled after layer ${trace.depths[at]}`;

function buildText(trace) {
  const items = trace.texts.map((text, at) =>
    element(
      "bdi",
      {
        class: `ss-t ${trace.classes[at]} ss-f${trace.fates[at]}`,
        role: "button",
        "aria-pressed": "false",
        "aria-label": `${text.trim() || "space"}, ${FATES[trace.fates[at]]}, ${depthWords(trace, at)}`,
      },
      text,
    ),
  );
  return { items, box: element("div", { class: "ss-text", role: "group", "aria-label": "Tokens", dir: "auto" }, ...items) };
}

/** What is known of one token, with the candidates of every layer once they came. */
function fillCard(card, trace, at, { pinned, candidates }) {
  const round = trace.rounds[trace.roundOf[at]];
  const facts = [
    ["Id", String(trace.ids[at])],
    ["Round", `${trace.roundOf[at]} (${round.drafted} drafted, ${round.accepted} accepted)`],
    ["Fate", FATES[trace.fates[at]]],
    ["Draft", percent(trace.draftProbs[at])],
    ["Model", percent(trace.targetProbs[at])],
    ["Depth", depthWords(trace, at)],
  ];
  const list = element(
    "dl",
    { class: "ss-facts" },
    ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
  const title = element("h3", {}, "Token ", element("bdi", { class: "ss-quoted" }, trace.texts[at].replaceAll("\n", "")), pinned ? " (pinned)" : "");
  card.replaceChildren(title, list);
  if (!candidates) {
    card.append(element("p", { class: "ss-muted" }, "Enter or a click pins the token and shows each layer's candidates."));
    return;
  }
  if (candidates.rejected.length) {
    const dropped = candidates.rejected.map((text) => element("del", {}, element("bdi", {}, text)));
    card.append(element("p", {}, "Drafted instead and dropped: ", ...dropped.flatMap((each) => [each, " "])));
  }
  const rows = candidates.layers.map((found, layer) => [
    String(layer + 1),
    ...found.map(([text, prob]) => element("span", {}, element("bdi", {}, text), ` ${percent(prob, 0)}`)),
  ]);
  const head = ["Layer", ...candidates.layers[0].map((_, place) => `${place + 1}.`)];
  const scroll = element("div", { class: "ss-scroll ss-candidates", tabindex: "0", role: "region", "aria-label": "Candidates" });
  scroll.append(table("Likeliest tokens after each layer", head, rows.reverse()));
  card.append(scroll);
}

function buildStrip(trace, onPick) {
  const shown = trace.rounds.slice(1);
  const rows = 1 + Math.max(0, ...shown.map((round) => round.drafted));
  const picture = shape("svg", {
    width: Math.max(120, shown.length * SQUARE),
    height: rows * SQUARE + 2,
    role: "img",
    "aria-label": `${shown.length} rounds; a click goes to a round's tokens, up and down arrows do so in the text`,
  });
  shown.forEach((round, index) => {
    const group = shape("g", { class: "ss-pick" });
    group.append(shape("title", {}, `Round ${index + 1}: ${round.drafted} drafted, ${round.accepted} accepted`));
    group.append(shape("rect", { x: index * SQUARE, y: 0, width: SQUARE, height: rows * SQUARE, fill: "transparent" }));
    const kinds = [
      ...Array(round.accepted).fill("ss-a"),
      ...Array(round.tokens - round.accepted).fill("ss-b"),
      ...Array(round.drafted - round.accepted).fill("ss-hollow"),
    ];
    kinds.forEach((kind, level) => {
      const y = (rows - 1 - level) * SQUARE + 1;
      group.append(shape("rect", { x: index * SQUARE + 1, y, width: SQUARE - 3, height: SQUARE - 3, class: kind }));
    });
    group.addEventListener("click", () => onPick(round.start));
    picture.append(group);
  });
  return element("div", { class: "ss-scroll", tabindex: "0", role: "region", "aria-label": "Strip of rounds" }, picture);
}

/** One path over all cells of a kind, a rectangle for each run. */
function runs(trace, height, wanted) {
  let path = "";
  for (let layer = 0; layer < trace.numLayers; layer += 1) {
    const y = (trace.numLayers - 1 - layer) * height;
    for (let at = 0; at < trace.numTokens; at += 1) {
      const start = at;
      while (at < trace.numTokens && wanted(layer, at)) at += 1;
      if (at > start) path += `M${start * CELL} ${y}h${(at - start) * CELL}v${height}h-${(at - start) * CELL}z`;
    }
  }
  return path;
}

function buildMap(trace, onPick) {
  const height = Math.max(6, Math.min(12, Math.floor(320 / trace.numLayers)));
  const [width, bottom] = [trace.numTokens * CELL, trace.numLayers * height];
  const settled = (layer, at) => layer + 1 >= trace.depths[at];
  const fleeting = (layer, at) => !settled(layer, at) && agrees(trace, layer, at);
  const cursor = shape("rect", { y: 0, width: CELL, height: bottom, class: "ss-cursor", visibility: "hidden" });
  const picture = shape(
    "svg",
    { width: width + 34, height: bottom + 2, viewBox: `-34 0 ${width + 34} ${bottom + 2}`, role: "img" },
    shape("path", { class: "ss-a", d: runs(trace, height, settled) }),
    shape("path", { class: "ss-w", d: runs(trace, height, fleeting) }),
    shape("rect", { x: 0, y: 0, width, height: bottom, class: "ss-frame" }),
    cursor,
  );
  picture.setAttribute(
    "aria-label",
    "Layers by tokens: filled where the model says the token here and later, pale where it says it and changes its mind",
  );
  for (let layer = 1; layer <= trace.numLayers; layer += 1) {
    if (layer !== 1 && layer !== trace.numLayers && (layer % 5 || layer > trace.numLayers - 2)) continue;
    const y = (trace.numLayers - layer) * height + height;
    picture.append(shape("text", { x: -5, y, "text-anchor": "end" }, String(layer)));
  }
  if (trace.exitLayer > 0) {
    const y = (trace.numLayers - trace.exitLayer) * height;
    picture.append(shape("line", { x1: -4, x2: width, y1: y, y2: y, class: "ss-exit" }));
  }
  picture.addEventListener("click", (event) => {
    const at = Math.floor((event.clientX - picture.getBoundingClientRect().left - 34) / CELL);
    if (at >= 0 && at < trace.numTokens) onPick(at);
  });
  const box = element("div", { class: "ss-scroll", tabindex: "0", role: "region", "aria-label": "Map of layers by tokens" });
  box.append(picture);
  const mark = (at) => {
    cursor.setAttribute("x", at * CELL);
    cursor.setAttribute("visibility", "visible");
    if (box.clientWidth) box.scrollLeft = at * CELL - box.clientWidth / 2;
  };
  return { box, mark };
}

function byPlace(trace) {
  const longest = Math.max(0, ...trace.rounds.map((round) => round.drafted));
  const rows = Array.from({ length: longest }, (_, place) => {
    const drafted = trace.rounds.filter((round) => round.drafted > place).length;
    const accepted = trace.rounds.filter((round) => round.accepted > place).length;
    return [String(place + 1), String(drafted), String(accepted), percent(accepted / drafted, 0)];
  });
  return rows.length ? table("Acceptance by place in the draft", ["Place", "Drafted", "Accepted", "Share"], rows) : "";
}

const STRIP_WORDS =
  "One column per round, from the bottom: accepted draft tokens filled, the model's own token in the second colour, " +
  "drafted and dropped ones hollow. A click goes to the round's tokens.";
const MAP_WORDS = "Filled: the model says this token here and at every later layer. Pale: it says it here, not for good.";
const EXIT_WORDS = " Dashed line: the plan's exit.";

const note = (words) => element("p", { class: "ss-muted" }, words);
const section = (title, ...content) => element("section", {}, element("h2", {}, title), ...content);

function render({ model, el }) {
  replaceFallback(model);
  const trace = readTrace(model);
  const root = element("div", { class: "ss ss-widget", "data-lm-suppress-shortcuts": "true" });
  const card = element("div", { class: "ss-card", role: "status", "aria-live": "polite" });
  const known = new Map();
  let [shown, pinned] = [-1, -1];

  const show = (at) => {
    shown = at;
    fillCard(card, trace, at, { pinned: at === pinned, candidates: known.get(at) });
    map.mark(at);
  };
  const look = (at) => {
    if (pinned < 0) show(at);
  };
  const release = () => {
    if (pinned >= 0) items[pinned].setAttribute("aria-pressed", "false");
    pinned = -1;
    if (shown >= 0) show(shown);
  };
  const pin = (at) => {
    const same = at === pinned;
    release();
    if (same) return;
    pinned = at;
    items[at].setAttribute("aria-pressed", "true");
    if (!known.has(at)) model.send({ kind: "candidates", token: at });
    show(at);
  };
  const onMessage = (message) => {
    if (message.kind !== "candidates") return;
    known.set(message.token, message);
    if (message.token === shown) show(shown);
  };
  const { items, box } = buildText(trace);
  const go = (at) => {
    release();
    tokens.focus(at);
    show(at);
  };
  const map = buildMap(trace, go);
  const tokens = roving(items, {
    onEnter: pin,
    onEscape: release,
    onFocus: look,
    jumps: {
      ArrowDown: (at) => trace.rounds[trace.roundOf[at] + 1]?.start ?? at,
      ArrowUp: (at) => trace.rounds[Math.max(0, trace.roundOf[at] - 1)].start,
    },
  });
  box.addEventListener("mouseover", (event) => {
    const at = items.indexOf(event.target.closest?.("bdi"));
    if (at >= 0) look(at);
  });
  box.addEventListener("click", (event) => {
    const at = items.indexOf(event.target.closest?.("bdi"));
    if (at >= 0) pin(at);
  });
  model.on("msg:custom", onMessage);

  const legend = element("div", {}, ...adopted(model.get("legend")));
  root.append(
    element("p", {}, model.get("headline")),
    element("p", {}, model.get("sentence")),
    section("The text", legend, box, card),
    section("Rounds", buildStrip(trace, go), note(STRIP_WORDS), byPlace(trace)),
    section("Layers by tokens", map.box, note(MAP_WORDS + (trace.exitLayer > 0 ? EXIT_WORDS : ""))),
  );
  card.append(
    element("p", { class: "ss-muted" }, "Point at a token, or reach it by Tab and arrows; up and down go from round to round."),
  );
  el.append(root);
  return () => model.off("msg:custom", onMessage);
}

export default { render };
