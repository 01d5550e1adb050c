// What another exit layer, number of draft tokens or threshold would bring: replayed over a trace, an estimate.

/**
 * Replays rounds over a trace whose tokens are known.
 *
 * `agree(t)` says whether the exit would have drafted token t, `sure(t)` how likely it found its token there. A token
 * that the exit is not sure enough of is still drafted, and is the last of its round, as in the runtime.
 */
export function replay({ numTokens, agree, sure, numDraftTokens, threshold, roundSeconds, plainSeconds }) {
  const counts = { rounds: 0, drafted: 0, accepted: 0, emitted: 0, seconds: 0 };
  for (let start = 1; start < numTokens; ) {
    const room = numTokens - start - 1;
    const budget = Math.min(numDraftTokens, room);
    let [drafted, accepted, standing] = [0, 0, true];
    while (drafted < budget) {
      const at = start + drafted;
      drafted += 1;
      standing = standing && agree(at);
      accepted += standing ? 1 : 0;
      if (sure(at) < threshold) break;
    }
    counts.rounds += 1;
    counts.drafted += drafted;
    counts.accepted += accepted;
    counts.emitted += accepted + 1;
    counts.seconds += roundSeconds[drafted];
    start += accepted + 1;
  }
  const speedup = counts.rounds ? (counts.emitted * plainSeconds) / counts.seconds : 1;
  return { ...counts, speedup, tokensPerRound: counts.rounds ? counts.emitted / counts.rounds : 1 };
}

/** The textbook's tokens per round, where there is no trace to replay. */
export function textbook({ agreement, numDraftTokens, roundSeconds, plainSeconds }) {
  let [tokens, power] = [0, 1];
  for (let place = 0; place <= numDraftTokens; place += 1) {
    tokens += power;
    power *= agreement;
  }
  return { tokensPerRound: tokens, speedup: (tokens * plainSeconds) / roundSeconds[numDraftTokens] };
}

/** What the kernel sent, and the estimate of one setting. */
function readEvidence(model) {
  const numLayers = model.get("num_layers");
  const numTokens = model.get("num_tokens");
  const stride = Math.ceil(numTokens / 8);
  const width = model.get("max_draft_tokens") + 1;
  const agree = bytes(model.get("agree"));
  const sure = bytes(model.get("sure"));
  const seconds = floats(model.get("round_seconds"));
  const agreement = floats(model.get("agreement"));
  const plainSeconds = model.get("plain_seconds");
  const estimate = ({ exitLayer, numDraftTokens, threshold }) => {
    const layer = exitLayer - 1;
    const roundSeconds = seconds.subarray(layer * width, (layer + 1) * width);
    const common = { numDraftTokens, roundSeconds, plainSeconds };
    if (!numTokens) return textbook({ ...common, agreement: agreement[layer] });
    return replay({
      ...common,
      numTokens,
      threshold,
      agree: (at) => ((agree[layer * stride + (at >> 3)] >> (7 - (at & 7))) & 1) === 1,
      sure: (at) => sure[layer * numTokens + at] / 255,
    });
  };
  return { numLayers, numTokens, maxDraftTokens: width - 1, estimate, measured: model.get("measured") };
}

let serial = 0;

function slider(name, attributes, shown, onInput) {
  serial += 1;
  const id = `ss-slider-${serial}`;
  const input = element("input", { type: "range", id, ...attributes });
  const output = element("output", { for: id }, shown(input.valueAsNumber));
  input.addEventListener("input", () => {
    output.replaceChildren(shown(input.valueAsNumber));
    input.setAttribute("aria-valuetext", shown(input.valueAsNumber));
    onInput();
  });
  input.addEventListener("keydown", (event) => event.stopPropagation());
  return { input, row: [element("label", { for: id }, name), input, output] };
}

function drawCurve(evidence, setting) {
  const [width, height, left, bottom] = [560, 220, 40, 28];
  const exits = Array.from({ length: evidence.numLayers - 1 }, (_, index) => index + 1);
  const speedups = exits.map((exitLayer) => evidence.estimate({ ...setting, exitLayer }).speedup);
  const same = evidence.measured.filter((point) => point.num_draft_tokens === setting.numDraftTokens);
  const top = Math.max(1.2, ...speedups, ...same.map((point) => point.speedup)) * 1.05;
  const x = (layer) => left + ((layer - 1) / Math.max(1, exits.length - 1)) * (width - left - 12);
  const y = (value) => (height - bottom) * (1 - value / top);
  const path = speedups.map((value, index) => `${index ? "L" : "M"}${x(exits[index])} ${y(value)}`).join(" ");
  const picture = shape("svg", {
    class: "ss-fit",
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `Estimated speedup by exit layer, ${setting.numDraftTokens} draft token${setting.numDraftTokens === 1 ? "" : "s"}`,
  });
  for (let tick = 0; tick <= top; tick += 0.5) {
    picture.append(
      shape("line", { x1: left, x2: width - 12, y1: y(tick), y2: y(tick), class: tick === 1 ? "ss-exit" : "ss-grid" }),
      shape("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, `${tick.toFixed(1)}x`),
    );
  }
  for (const layer of exits.filter((each) => each === 1 || each % 5 === 0)) {
    picture.append(shape("text", { x: x(layer), y: height - 12, "text-anchor": "middle" }, String(layer)));
  }
  picture.append(shape("path", { class: "ss-la", d: path }));
  const here = { cx: x(setting.exitLayer), cy: y(speedups[setting.exitLayer - 1]), r: 5, class: "ss-a" };
  picture.append(shape("circle", here));
  for (const point of same) {
    const words = `${point.speedup.toFixed(2)}x with an exit after layer ${point.exit_layer}, ${point.what}`;
    const place = { x: x(point.exit_layer) - 4, y: y(point.speedup) - 4, width: 8, height: 8, class: "ss-b" };
    picture.append(shape("rect", place, shape("title", {}, words)));
  }
  return picture;
}

function render({ model, el }) {
  replaceFallback(model);
  const evidence = readEvidence(model);
  const root = element("div", { class: "ss ss-widget", "data-lm-suppress-shortcuts": "true" });
  const result = element("div", { role: "status", "aria-live": "polite" });
  const figure = element("figure");
  const answer = element("p", { role: "status", "aria-live": "polite" });
  const setting = () => ({
    exitLayer: exit.input.valueAsNumber,
    numDraftTokens: drafts.input.valueAsNumber,
    threshold: threshold.input.valueAsNumber / 100,
  });
  const update = () => {
    const found = evidence.estimate(setting());
    const facts = [
      ["Estimated speedup", `${found.speedup.toFixed(2)}x`],
      ["Tokens per round", found.tokensPerRound.toFixed(2)],
      ["Acceptance rate", percent(found.accepted / found.drafted)],
    ];
    const list = element("dl", { class: "ss-facts" });
    list.append(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    result.replaceChildren(list);
    figure.replaceChildren(
      drawCurve(evidence, setting()),
      element(
        "figcaption",
        {},
        "Line: estimated speedup by layers run, the dot is the setting above. Squares: measured with this number of draft tokens.",
      ),
    );
  };
  const layers = { min: 1, max: evidence.numLayers - 1, value: model.get("start_exit") };
  const exit = slider("Exit after layer", layers, String, update);
  const counts = { min: 1, max: evidence.maxDraftTokens, value: model.get("start_drafts") };
  const drafts = slider("Draft tokens", counts, String, update);
  const threshold = slider("Stop below", { min: 0, max: 99, value: 0 }, (value) => `${value} %`, update);
  if (!evidence.numTokens) threshold.input.disabled = true;
  const button = element("button", { type: "button" }, "Measure this setting");
  const stop = element("button", { type: "button" }, "Stop");
  const buttons = element("p", {}, button, " ", stop);
  buttons.hidden = !model.get("can_measure");
  stop.hidden = true;
  const measuring = (on, text) => {
    button.disabled = on;
    stop.hidden = !on;
    answer.replaceChildren(text);
  };
  button.addEventListener("click", () => {
    measuring(true, "Measuring. Cells run between its runs, and make it wait …");
    model.send({ kind: "measure", ...setting() });
  });
  stop.addEventListener("click", () => {
    model.send({ kind: "stop" });
    answer.replaceChildren("Stopping after this run …");
  });
  const onMessage = (message) => {
    if (message.kind === "measuring") measuring(true, message.text);
    if (message.kind !== "measured") return;
    measuring(false, message.text);
    if (message.point) evidence.measured = [...evidence.measured, message.point];
    update();
  };
  model.on("msg:custom", onMessage);
  root.append(
    element("p", {}, element("strong", {}, "An estimate, not a measurement. "), model.get("basis")),
    element("div", { class: "ss-controls" }, ...exit.row, ...drafts.row, ...threshold.row),
    result,
    figure,
    buttons,
    answer,
    element("p", { class: "ss-muted" }, model.get("formula")),
  );
  el.append(root);
  update();
  return () => model.off("msg:custom", onMessage);
}

export default { render };
