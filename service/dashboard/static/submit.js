/* The submit page, in addition to htmx: marks invalid inputs, shows errors, and loses no edit without a question.
   The form shows what the text says (in step) after it wrote the text, and after the service read a valid text. */
"use strict";
(() => {
  const fields = document.getElementById("fields"), verdict = document.getElementById("verdict"), study = document.getElementById("study");
  const text = () => document.getElementById("definition");
  let known = "inStep" in fields.dataset ? text().defaultValue : null; // the text that the form shows
  let asked = "", accepted = [], unsaved = "unsaved" in study.dataset;

  const byHand = () => text().value !== known;
  const inputs = () => [...fields.elements].filter((input) => input.name);
  const remember = () => { accepted = inputs().map((input) => (input.type === "checkbox" ? input.checked : input.value)); };
  const restore = () => inputs().forEach((input, i) => { input[input.type === "checkbox" ? "checked" : "value"] = accepted[i]; });

  /* The input that writes a field: the text's optimizers are those checked, in their order, unless it was changed by hand. */
  function nameOf(field) {
    const at = byHand() ? null : /^optimizers\.(\d+)\.space$/.exec(field);
    return at ? `space.${fields.querySelectorAll("[name=optimizer]:checked")[at[1]]?.value}` : field;
  }

  function mark() {
    const faults = new Map([...verdict.querySelectorAll("[data-field]")].map((fault) => [nameOf(fault.dataset.field), fault]));
    for (const input of fields.elements) {
      const fault = faults.get(input.name);
      if (fault) { input.setAttribute("aria-invalid", "true"); input.title = fault.textContent; }
      else if (input.hasAttribute("aria-invalid")) { input.removeAttribute("aria-invalid"); input.removeAttribute("title"); }
    }
  }

  function tell(said) {
    verdict.replaceChildren(Object.assign(document.createElement("p"), { className: "bad", textContent: said }));
  }

  document.addEventListener("input", () => { unsaved = true; });
  study.addEventListener("submit", () => { unsaved = false; });
  addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });

  document.addEventListener("htmx:confirm", (event) => {
    if (event.target !== fields || !byHand()) return;
    event.preventDefault();
    if (confirm("The text was changed by hand, and the form does not show all of it (an error or a comment is in it). Replace the text by what the form says?")) {
      known = text().value;
      event.detail.issueRequest(true);
    } else restore();
  });
  document.addEventListener("htmx:beforeRequest", () => { asked = text().value; });
  /* What is typed while the answer is on its way stays. */
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target.id === "yaml" && text().value !== asked) event.detail.shouldSwap = false; });
  document.addEventListener("htmx:afterSwap", (event) => { if (event.detail.target.id === "yaml") known = text().value; });
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    if (event.detail.target !== fields) return;
    if (fields.contains(document.activeElement)) event.detail.shouldSwap = false;
    else event.detail.open = [...fields.querySelectorAll("details")].map((one) => one.open);
  });
  document.addEventListener("htmx:oobAfterSwap", (event) => {
    if (event.detail.target !== fields) return;
    known = asked;
    fields.querySelectorAll("details").forEach((one, i) => { one.open = event.detail.open?.[i] ?? one.open; });
  });
  document.addEventListener("htmx:afterSettle", () => { mark(); if (!byHand()) remember(); });
  document.addEventListener("htmx:responseError", (event) => {
    let said = null;
    try { said = JSON.parse(event.detail.xhr.responseText); } catch (error) { /* not an error of the service */ }
    tell(said ? said.detail : `The service answered ${event.detail.xhr.status}; try again.`);
  });
  document.addEventListener("htmx:sendError", () => tell("The service does not answer; the next change tries again."));
  mark();
  remember();
})();
