"use strict";
(() => {
  const root = document.documentElement, tip = document.getElementById("tip");
  root.classList.add("live");

  // what is told of a mark, beside the pointer or the mark itself
  const tell = (name, lines, x, y) => {
    tip.replaceChildren();
    const head = document.createElement("strong");
    head.textContent = name;
    tip.append(head);
    for (const [label, text] of lines) {
      const row = document.createElement("div"), left = document.createElement("span"), right = document.createElement("span");
      left.textContent = label;
      right.textContent = text;
      row.append(left, right);
      tip.append(row);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), gap = 14;
    tip.style.left = `${Math.max(8, Math.min(x + gap, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + gap + box.height > innerHeight ? Math.max(8, y - gap - box.height) : y + gap}px`;
  };
  const hide = () => { tip.hidden = true; };
  const lines = (mark) => {
    const parts = mark.dataset.tip ? mark.dataset.tip.split("\n") : [];
    return parts.flatMap((part, i) => (i % 2 ? [] : [[part, parts[i + 1]]]));
  };

  for (const plot of document.querySelectorAll(".plot")) {
    const marks = [...plot.querySelectorAll(".mark")], curves = marks.filter((mark) => mark.dataset.values);
    if (!marks.length) continue;
    marks[0].setAttribute("tabindex", "0");  // one stop of the Tab key a chart, arrows within
    marks.forEach((mark, i) => {
      mark.addEventListener("focus", () => {
        if (!mark.matches(":focus-visible")) return;
        const box = (mark.querySelector(".dot, .name") || mark).getBoundingClientRect();
        tell(mark.dataset.name, lines(mark), box.left + Math.min(box.width / 2, 240), box.top + box.height / 2);
      });
      mark.addEventListener("blur", hide);
      mark.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        const to = event.key === "Home" ? 0 : event.key === "End" ? marks.length - 1 : step ? i + step : -1;
        if (event.key === "Escape") hide();
        if (to < 0 || to >= marks.length) return;
        event.preventDefault();
        mark.setAttribute("tabindex", "-1");
        marks[to].setAttribute("tabindex", "0");
        marks[to].focus();
      });
      if (curves.length) return;
      mark.addEventListener("pointermove", (event) => tell(mark.dataset.name, lines(mark), event.clientX, event.clientY));
      mark.addEventListener("pointerleave", hide);
    });
    if (curves.length) follow(plot, curves);
  }

  // over lines: all of them where the pointer is
  function follow(plot, curves) {
    const { low, high, scale, xLabel, xUnit, yUnit } = plot.dataset, cursor = plot.querySelector(".cursor");
    const step = { linear: (x) => x, log: Math.log10, tail: (x) => -Math.log10(Math.max(1 - x / 100, 1e-9)) }[scale];
    const place = (x) => (step(x) - low) / (high - low);
    const known = curves.map((mark) => ({
      name: mark.dataset.name,
      values: mark.dataset.values.split(" ").map((pair) => pair.split(",").map(Number)),
    }));
    const figure = (value) => String(Number(value.toPrecision(4)));
    const unit = (text) => (text ? ` ${text}` : "");
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect(), at = (event.clientX - box.left) / box.width;
      const near = known.map((one) => ({
        name: one.name,
        pair: one.values.reduce((best, pair) => Math.abs(place(pair[0]) - at) < Math.abs(place(best[0]) - at) ? pair : best),
      }));
      const x = near.reduce((best, one) => Math.abs(place(one.pair[0]) - at) < Math.abs(place(best.pair[0]) - at) ? one : best).pair[0];
      cursor.setAttribute("x1", `${100 * place(x)}%`);
      cursor.setAttribute("x2", `${100 * place(x)}%`);
      cursor.removeAttribute("hidden");
      const shown = near.filter((one) => Math.abs(place(one.pair[0]) - place(x)) < 0.01);
      tell(`${xLabel} ${figure(x)}${unit(xUnit)}`, shown.map((one) => [one.name, `${figure(one.pair[1])}${unit(yUnit)}`]),
        event.clientX, event.clientY);
    });
    plot.addEventListener("pointerleave", () => { cursor.setAttribute("hidden", ""); hide(); });
  }

  // a table that is too wide says so
  const hints = [...document.querySelectorAll(".swipe")];
  const hint = () => hints.forEach((one) => {
    const table = one.previousElementSibling;
    one.hidden = table.scrollWidth <= table.clientWidth + 1;
  });
  addEventListener("resize", hint);
  document.addEventListener("toggle", hint, true);
  hint();

  for (const slide of document.querySelectorAll(".slide")) {
    const range = slide.querySelector("input"), move = () => slide.style.setProperty("--at", `${range.value}%`);
    range.addEventListener("input", move);
    move();
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.previousElementSibling.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
        button.textContent = "Selected";
      }
    });
  }

  const download = document.getElementById("download");
  download.hidden = false;
  download.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([document.getElementById("data").textContent], { type: "application/json" }));
    link.download = download.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  // on paper everything is open
  const folded = [...document.querySelectorAll("details")];
  let open = [];
  addEventListener("beforeprint", () => { open = folded.filter((one) => one.open); folded.forEach((one) => { one.open = !one.classList.contains("facts") || one.open; }); });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = open.includes(one); }));
  addEventListener("scroll", hide, { passive: true });
})();
