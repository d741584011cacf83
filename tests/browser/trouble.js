// Every visible thing in a colour of trouble, amber or red, but for what counts the dead. Returns one line per thing.
() => {
  const probe = document.body.appendChild(document.createElement("i"));
  const read = (name) => ((probe.style.color = `var(--${name})`), getComputedStyle(probe).color);
  const names = ["retrying", "retrying-fill", "retrying-tint", "dead", "dead-fill", "dead-tint", "danger"];
  const hues = new Map(names.map((name) => [read(name), name]));
  probe.remove();
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility({ visibilityProperty: true }) || element.closest("defs, symbol, .st-dead, .key.dead, a.bad[href*='is%3Adead']")) continue;
    const style = getComputedStyle(element);
    const drawn = element.matches("rect, path, circle, polyline") ? [style.fill, style.stroke] : [style.color, style.backgroundColor];
    for (const hue of drawn) if (hues.has(hue)) found.push(`${hues.get(hue)} ${element.tagName} ${element.className.baseVal ?? element.className} ${element.textContent.trim().slice(0, 40)}`);
  }
  return found;
}
