// The stretch of time that timeline and memory show, and what the reader has chosen.

const view = {
  start: 0,
  end: planData.makespan_s || 1,
  total: planData.makespan_s || 1,
  stage: null,
  listeners: [],

  onChange(listener) { this.listeners.push(listener); },
  changed() { for (const listener of this.listeners) listener(); },

  /** Show [start, end], kept inside the step and no closer than a millionth of it. */
  show(start, end) {
    const span = Math.min(this.total, Math.max(this.total * 1e-6, end - start));
    this.start = Math.min(Math.max(0, start), this.total - span);
    this.end = this.start + span;
    this.changed();
  },
  zoom(factor, at = (this.start + this.end) / 2) {
    const span = Math.min(this.total, (this.end - this.start) * factor);
    const share = (at - this.start) / (this.end - this.start);
    this.show(at - share * span, at + (1 - share) * span);
  },
  move(share) {
    const shift = (this.end - this.start) * share;
    this.show(this.start + shift, this.end + shift);
  },
  fit() { this.show(0, this.total); },
  isWhole() { return this.end - this.start >= this.total * 0.999999; },
  choose(stage) {
    this.stage = this.stage === stage ? null : stage;
    this.changed();
  },
};

const colours = {};

/** Read the theme's colours for the canvases, which cannot use variables. */
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["panel", "text", "quiet", "row", "grid", "accent", "good", "bad", "dim", "soft"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  colours.dim = Number(colours.dim);
}

/** A colour for the i-th of many: neighbours differ by the golden angle, white text stays readable. */
function wheelColour(index) {
  return `hsl(${((index * 137.508) % 360).toFixed(1)} 58% 38%)`;
}

/** Size a canvas to its box at the screen's resolution; returns its context in CSS pixels. */
function prepareCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Run `draw` at most once a frame; keeps how long it took for whoever measures. */
function drawOncePerFrame(draw, timings) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const before = performance.now();
      draw();
      timings.push(performance.now() - before);
      if (timings.length > 600) timings.shift();
    });
  };
}

const tooltip = {
  element: document.getElementById("tooltip"),
  show(x, y, title, lines) {
    const list = makeElement("dl");
    for (const [name, value] of lines) {
      list.appendChild(makeElement("dt", { text: name }));
      list.appendChild(makeElement("dd", { text: value }));
    }
    this.element.replaceChildren(makeElement("b", { text: title }), list);
    this.element.hidden = false;
    const box = this.element.getBoundingClientRect();
    const left = x + 16 + box.width > window.innerWidth ? x - 16 - box.width : x + 16;
    const top = Math.min(y + 16, window.innerHeight - box.height - 8);
    this.element.style.left = `${Math.max(8, left)}px`;
    this.element.style.top = `${Math.max(8, top)}px`;
  },
  hide() { this.element.hidden = true; },
};
