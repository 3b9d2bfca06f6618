// The page's theme: the user's choice, or else the system's. It runs before the first paint, so it is no module.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("jaxgen.theme");
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  };
  dark.addEventListener("change", apply);
  addEventListener("storage", apply); // another tab has chosen, or the header of this one
  apply();
}
