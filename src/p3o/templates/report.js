"use strict";
(() => {
  // A cursor over each chart: the pointer or the arrow keys choose a point, a box beside it says what is there.
  const all = JSON.parse(document.getElementById("points").textContent);
  const make = (parent, kind) => { const e = document.createElement("div"); e.className = kind; e.hidden = true; parent.append(e); return e; };
  for (const plot of document.querySelectorAll(".plot")) {
    const points = all[plot.dataset.chart];
    const probe = plot.querySelector(".probe");
    if (!points || !points.length) continue;
    const hair = make(probe, "hair"), ball = make(probe, "ball"), said = make(probe, "said");
    let chosen = points.length - 1;
    const hide = () => { hair.hidden = ball.hidden = said.hidden = true; };
    const show = (index) => {
      chosen = Math.max(0, Math.min(points.length - 1, index));
      const [x, y, ...words] = points[chosen];
      hair.hidden = ball.hidden = said.hidden = false;
      hair.style.left = ball.style.left = `${x}%`;
      ball.style.top = `${y}%`;
      said.replaceChildren(...words.map((word) => { const s = document.createElement("span"); s.textContent = word; return s; }));
      said.style.left = x > 55 ? "auto" : `calc(${x}% + 12px)`;
      said.style.right = x > 55 ? `calc(${100 - x}% + 12px)` : "auto";
      said.style.top = y < 50 ? "auto" : "0";
      said.style.bottom = y < 50 ? "8px" : "auto";
      probe.setAttribute("aria-valuenow", chosen);
      probe.setAttribute("aria-valuetext", words.join(", "));
    };
    const nearest = (percent) => {
      let best = 0;
      points.forEach((p, i) => { if (Math.abs(p[0] - percent) < Math.abs(points[best][0] - percent)) best = i; });
      return best;
    };
    const follow = (event) => { const box = probe.getBoundingClientRect(); show(nearest((event.clientX - box.left) / box.width * 100)); };
    probe.tabIndex = 0;
    for (const [key, value] of Object.entries({ role: "slider", "aria-label": `${probe.dataset.label}: values along the curve`, "aria-valuemin": 0, "aria-valuemax": points.length - 1, "aria-valuenow": chosen, "aria-valuetext": points[chosen].slice(2).join(", ") })) probe.setAttribute(key, value);
    probe.addEventListener("pointermove", follow);
    probe.addEventListener("pointerdown", follow);
    probe.addEventListener("pointerleave", () => { if (document.activeElement !== probe) hide(); });
    probe.addEventListener("focus", () => show(chosen));
    probe.addEventListener("blur", hide);
    probe.addEventListener("keydown", (event) => {
      const page = Math.ceil(points.length / 10);
      const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, ArrowDown: chosen - 1, ArrowUp: chosen + 1, PageDown: chosen - page, PageUp: chosen + page, Home: 0, End: points.length - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }
})();
