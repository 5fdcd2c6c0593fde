/* The submit page, in addition to htmx: marks invalid inputs, keeps text typed by hand, shows errors. */
"use strict";
(() => {
  const fields = document.getElementById("fields"), verdict = document.getElementById("verdict");
  let byHand = false;

  /* The input that writes a field: the text's optimizers are those checked, in their order, unless it was changed by hand. */
  function nameOf(field) {
    const at = byHand ? null : /^optimizers\.(\d+)\.space$/.exec(field);
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

  function tell(text) {
    verdict.replaceChildren(Object.assign(document.createElement("p"), { className: "bad", textContent: text }));
  }

  document.addEventListener("input", (event) => { if (event.target.id === "definition") byHand = true; });
  document.addEventListener("htmx:confirm", (event) => {
    if (event.target !== fields || !byHand) return;
    event.preventDefault();
    if (!confirm("The text was changed by hand. Replace it by the form's text?")) return;
    byHand = false;
    event.detail.issueRequest(true);
  });
  /* What is typed while the answer is on its way stays. */
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target.id === "yaml" && byHand) event.detail.shouldSwap = false; });
  document.addEventListener("htmx:afterSettle", mark);
  document.addEventListener("htmx:responseError", (event) => {
    let said = null;
    try { said = JSON.parse(event.detail.xhr.responseText); } catch (error) { /* not an error of the service */ }
    tell(said ? `${said.detail} ${said.hint}` : `The service answered ${event.detail.xhr.status}; try again.`);
  });
  document.addEventListener("htmx:sendError", () => tell("The service does not answer; the next change tries again."));
  mark();
})();
