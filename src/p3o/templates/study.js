// Each chapter is a page of its own: what is hidden or chosen in one changes nothing in another.
const start = (chapter, data) => {
  const state = { x: "steps", y: "linear", hidden: new Set(), runs: new Set() };
  const SVG = "http:" + "//www.w3.org/2000/svg"; // a name, not an address
  const all = (selector, within = chapter) => [...within.querySelectorAll(selector)];
  const kind = (choices, wanted) => (wanted in choices ? wanted : Object.keys(choices)[0]);
  const isNumber = (value) => value !== null && value !== undefined;
  const say = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: Math.abs(value) < 1 ? 3 : Math.abs(value) < 1000 ? 4 : 5 });
  const clock = (s) => (s >= 5400 ? `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min` : s >= 90 ? `${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${say(s)} s`);
  const sayX = { steps: (v) => `step ${Math.round(v).toLocaleString("en-US")}`, time: (v) => `after ${clock(v)}`, score: (v) => `score above ${say(v)}`, share: (v) => `at ${say(v)} % of training` };

  // From numbers to places in a square of 1000, y downwards, as in the page before the script ran.
  const place = (axis, value) => ((axis.log ? Math.log10(Math.max(value, 10 ** axis.low)) : value) - axis.low) / (axis.high - axis.low) * 1000;
  const pieces = (values) => {
    const found = [];
    values.forEach((value, i) => { if (isNumber(value)) { if (i && isNumber(values[i - 1])) found.at(-1).push(i); else found.push([i]); } });
    return found;
  };
  const point = (x, y, xs, ys, i) => `${place(x, xs[i]).toFixed(1)} ${(1000 - place(y, ys[i])).toFixed(1)}`;
  const linePath = (x, y, xs, ys) => pieces(ys).map((p) => "M" + p.map((i) => point(x, y, xs, ys, i)).join("L") + (p.length === 1 ? "h0" : "")).join("");
  const bandPath = (x, y, xs, low, high) => pieces(low).filter((p) => p.length > 1)
    .map((p) => "M" + [...p.map((i) => point(x, y, xs, high, i)), ...p.reverse().map((i) => point(x, y, xs, low, i))].join("L") + "Z").join("");

  class Chart {
    constructor(plot) {
      this.plot = plot;
      this.key = plot.dataset.chart;
      this.data = data.charts[this.key];
      this.probe = plot.querySelector(".probe");
      this.unit = chapter.querySelector(`[data-unit="${this.key}"]`);
      this.balls = [];
      this.prepare();
    }
    get xKind() { return kind(this.data.x, state.x); }
    get x() { return this.data.x[this.xKind]; }
    get y() { return this.data.y[kind(this.data.y, state.y)]; }
    get grid() { return this.data.grid[this.xKind]; }
    get shown() { return this.data.series.map((s, i) => [s, i]).filter(([s]) => !state.hidden.has(s.group) && this.xKind in s.on); }

    draw() {
      const { x, y, grid } = this;
      const svg = this.plot.querySelector("svg");
      this.plot.style.setProperty("--chars", Math.max(5, ...y.ticks.map(([, label]) => label.length)));
      this.ticks(".y-labels", y.ticks, "bottom");
      this.ticks(".x-labels", x.ticks, "left");
      all(".rule", this.plot).forEach((rule) => rule.remove());
      for (const [at] of y.ticks) { const rule = document.createElement("i"); rule.className = "rule"; rule.style.bottom = `${at}%`; svg.before(rule); }
      all(".series", svg).forEach((g, index) => {
        const series = this.data.series[index];
        const on = series.on[this.xKind];
        const isShown = on && !state.hidden.has(series.group);
        g.style.display = state.hidden.has(series.group) ? "none" : "";
        g.querySelector(".band").setAttribute("d", isShown ? bandPath(x, y, grid, on[1], on[2]) : "");
        g.querySelector(".line").setAttribute("d", isShown ? linePath(x, y, grid, on[0]) : "");
        all(".seed", g).forEach((path) => path.remove());
        series.seeds.forEach((seed, number) => {
          const run = `${this.key}/${index}/${number}`;
          if (!state.runs.has(run) || !seed[this.xKind]) return;
          const path = document.createElementNS(SVG, "path");
          path.setAttribute("class", "seed");
          path.dataset.run = run;
          path.setAttribute("d", linePath(x, y, grid, seed[this.xKind]));
          g.append(path);
        });
      });
      if (this.unit) this.unit.textContent = `across: ${this.xKind === "time" ? "wall time" : "environment steps"}${state.y === "log" ? (y.log ? ", log scale" : ", linear: not all positive") : ""}`;
      this.hide();
    }
    ticks(selector, ticks, side) {
      this.plot.querySelector(selector).replaceChildren(...ticks.map(([at, label]) => { const s = document.createElement("span"); s.style[side] = `${at}%`; if (side === "left" && at > 97) s.className = "end"; s.textContent = label; return s; }));
    }

    // A cursor: the pointer or the arrow keys choose a place, a box beside it says what every line has there.
    prepare() {
      const probe = this.probe;
      const make = (name) => { const e = document.createElement("div"); e.className = name; e.hidden = true; probe.append(e); return e; };
      this.hair = make("hair");
      this.said = make("said");
      this.balls = this.data.series.map((s) => { const ball = make("ball"); ball.style.setProperty("--c", `var(--g${s.group % 8})`); return ball; });
      this.chosen = this.grid.length - 1;
      probe.tabIndex = 0;
      for (const [key, value] of Object.entries({ role: "slider", "aria-label": `${probe.dataset.label}: values along the curves`, "aria-valuemin": 0, "aria-valuemax": this.grid.length - 1, "aria-valuenow": this.chosen, "aria-valuetext": this.words(this.chosen) })) probe.setAttribute(key, value);
      const follow = (event) => { const box = probe.getBoundingClientRect(); this.show(this.nearest((event.clientX - box.left) / box.width)); };
      probe.addEventListener("pointermove", follow);
      probe.addEventListener("pointerdown", follow);
      probe.addEventListener("pointerleave", () => { if (document.activeElement !== probe) this.hide(); });
      probe.addEventListener("focus", () => this.show(this.chosen));
      probe.addEventListener("blur", () => this.hide());
      probe.addEventListener("keydown", (event) => {
        const page = Math.ceil(this.grid.length / 10);
        const to = { ArrowLeft: this.chosen - 1, ArrowRight: this.chosen + 1, ArrowDown: this.chosen - 1, ArrowUp: this.chosen + 1, PageDown: this.chosen - page, PageUp: this.chosen + page, Home: 0, End: this.grid.length - 1 }[event.key];
        if (event.key === "Escape") this.hide();
        if (to === undefined) return;
        event.preventDefault();
        this.show(to);
      });
    }
    nearest(share) {
      const at = this.x.low + share * (this.x.high - this.x.low);
      let best = 0;
      this.grid.forEach((value, i) => { if (Math.abs(value - at) < Math.abs(this.grid[best] - at)) best = i; });
      return best;
    }
    values(i) {
      return this.shown.map(([s, index]) => {
        const [mean, low, high] = s.on[this.xKind].map((values) => values[i]);
        const there = s.seeds.filter((seed) => isNumber(seed[this.xKind]?.[i])).length;
        const spread = !isNumber(low) ? "" : s.seeds.length || !["score", "share"].includes(this.xKind) ? `± ${say((high - low) / 2)}` : `[${say(low)}, ${say(high)}]`;
        const count = this.xKind === "steps" && there && there < s.seeds.length ? `${there} of ${s.seeds.length} seeds` : "";
        return { index, group: s.group, label: data.groups[s.group], mean, spread, count };
      }).filter((v) => isNumber(v.mean)).sort((a, b) => b.mean - a.mean);
    }
    words(i) { return [sayX[this.xKind](this.grid[i]), ...this.values(i).map((v) => [v.label, say(v.mean), v.spread, v.count].filter(Boolean).join(" "))].join(", "); }
    show(index) {
      this.chosen = Math.max(0, Math.min(this.grid.length - 1, index));
      const left = place(this.x, this.grid[this.chosen]) / 10;
      const found = this.values(this.chosen);
      this.hide();
      this.hair.hidden = this.said.hidden = false;
      this.hair.style.left = `${left}%`;
      const first = document.createElement("span");
      first.textContent = sayX[this.xKind](this.grid[this.chosen]);
      this.said.replaceChildren(first, ...found.map((v) => {
        const ball = this.balls[v.index];
        ball.hidden = false;
        ball.style.left = `${left}%`;
        ball.style.top = `${100 - place(this.y, v.mean) / 10}%`;
        const row = document.createElement("span");
        row.className = "of";
        row.style.setProperty("--c", `var(--g${v.group % 8})`);
        const [value, rest] = ["b", "em"].map((tag) => document.createElement(tag));
        value.textContent = say(v.mean);
        rest.textContent = [v.spread, v.count].filter(Boolean).join(" · ");
        row.append(document.createElement("i"), v.label, value, rest);
        return row;
      }));
      this.said.style.left = left > 50 ? "auto" : `calc(${left}% + 12px)`;
      this.said.style.right = left > 50 ? `calc(${100 - left}% + 12px)` : "auto";
      const isHigh = found.length && place(this.y, found[0].mean) > 500;
      this.said.style.top = isHigh ? "auto" : "0";
      this.said.style.bottom = isHigh ? "8px" : "auto";
      this.probe.setAttribute("aria-valuemax", this.grid.length - 1);
      this.probe.setAttribute("aria-valuenow", this.chosen);
      this.probe.setAttribute("aria-valuetext", this.words(this.chosen));
    }
    hide() { this.hair.hidden = this.said.hidden = true; this.balls.forEach((ball) => { ball.hidden = true; }); }
  }

  const charts = all(".plot").map((plot) => new Chart(plot));
  const press = (button, isOn) => button.setAttribute("aria-pressed", String(isOn));
  const redraw = () => charts.forEach((chart) => chart.draw());

  for (const name of ["x", "y"]) {
    const buttons = all(`[data-${name}]`);
    buttons.forEach((button) => button.addEventListener("click", () => {
      state[name] = button.dataset[name];
      buttons.forEach((b) => press(b, b === button));
      redraw();
    }));
  }
  all(".chip[data-group]").forEach((chip) => chip.addEventListener("click", () => {
    const group = Number(chip.dataset.group);
    if (!state.hidden.delete(group)) state.hidden.add(group);
    press(chip, !state.hidden.has(group));
    redraw();
  }));
  const runs = all("button[data-run]");
  const seeds = chapter.querySelector("button.seeds");
  const showRuns = () => {
    runs.forEach((button) => press(button, state.runs.has(button.dataset.run)));
    press(seeds, runs.length > 0 && state.runs.size === runs.length);
    redraw();
  };
  runs.forEach((button) => button.addEventListener("click", () => {
    if (!state.runs.delete(button.dataset.run)) state.runs.add(button.dataset.run);
    showRuns();
  }));
  seeds.addEventListener("click", () => {
    const isOn = state.runs.size === runs.length;
    state.runs = new Set(isOn ? [] : runs.map((button) => button.dataset.run));
    showRuns();
  });
  all(".switches, .by-seed").forEach((part) => { part.hidden = false; });
};

const points = JSON.parse(document.getElementById("points").textContent);
document.querySelectorAll(".chapter").forEach((chapter) => { if (chapter.dataset.chapter in points) start(chapter, points[chapter.dataset.chapter]); });
