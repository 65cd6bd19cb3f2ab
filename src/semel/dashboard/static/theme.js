// Before the first paint: the theme that was chosen here, if any; and that there is a script at all.
const chosen = localStorage.getItem("semel-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
document.documentElement.dataset.script = "";
