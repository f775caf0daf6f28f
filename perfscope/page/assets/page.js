"use strict";
// What marks of charts show when pointed at, and which part of the page is being read.
(() => {
  const tip = document.getElementById("tip");

  function place(x, y) {
    const box = tip.getBoundingClientRect();
    const left = Math.min(x + 14, innerWidth - box.width - 8);
    const above = y + 18 + box.height > innerHeight;
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${above ? y - box.height - 10 : y + 18}px`;
  }

  function textOf(mark) {
    const title = mark.querySelector(":scope > title");
    if (title) {
      mark.dataset.tip = title.textContent;
      title.remove(); // or the browser would show it a second time
    }
    return mark.dataset.tip;
  }

  document.addEventListener("pointermove", (event) => {
    const mark = event.target instanceof Element ? event.target.closest(".mark") : null;
    const text = mark && textOf(mark);
    tip.hidden = !text;
    if (text) {
      tip.textContent = text;
      place(event.clientX, event.clientY);
    }
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "0px 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((part) => watch.observe(part));

  const contents = document.querySelector("nav details");
  if (contents && matchMedia("(max-width: 60rem)").matches) contents.open = false;
})();
