// Live parts of pages, keys, and the editor. Every page can be read without this file.
"use strict";

// Elements with data-live="N" are fetched again every N seconds, as parts of their own page.
function refresh(element) {
  if (document.hidden) return Promise.resolve();
  return fetch(location.href, { headers: { Accept: "text/html", "X-Headrace-Part": element.id } })
    .then((response) => {
      if (response.status === 401) location.reload();
      return response.ok ? response.text() : Promise.reject(new Error(String(response.status)));
    })
    .then((html) => {
      const fresh = new DOMParser().parseFromString(html, "text/html").getElementById(element.id);
      element.classList.remove("stale");
      if (!fresh || fresh.innerHTML === element.innerHTML) return;
      const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
      const scrolled = [...element.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
      element.replaceChildren(...fresh.childNodes);
      element.querySelectorAll(".scroll").forEach((each, at) => each.scrollTo(...(scrolled[at] || [0, 0])));
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    })
    .catch(() => element.classList.add("stale"));
}

for (const element of document.querySelectorAll("[data-live]")) {
  const again = () => setTimeout(() => refresh(element).finally(again), Number(element.dataset.live) * 1000);
  again();
}

// Keys: those of links with data-key, and j and k for rows.
function moveRow(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
  if (!row) return;
  const target = row.querySelector("a, button") || row;
  if (target === row) row.tabIndex = -1;
  target.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  if (event.key === "j" || event.key === "k") {
    moveRow(event.key === "j" ? 1 : -1);
    event.preventDefault();
    return;
  }
  const link = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === event.key);
  if (link) link.click();
});

// The editor sends its form when typing pauses; a newer request replaces one that is in progress.
const form = document.querySelector("[data-editor]");
if (form) {
  const result = document.getElementById("result");
  let timer = 0;
  let request = null;
  const run = () => {
    request?.abort();
    request = new AbortController();
    const body = new URLSearchParams(new FormData(form));
    fetch(form.action, { method: "POST", body, headers: { "X-Headrace-Part": "result" }, signal: request.signal })
      .then((response) => response.text())
      .then((html) => {
        result.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
      })
      .catch((error) => {
        if (error.name !== "AbortError") result.textContent = "The console does not respond.";
      });
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(run, 150);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    run();
  });
}
