// Every text on the page that is harder to read than WCAG AA allows, computed from what the browser draws: colours with
// their opacity over the grounds below them. Returns one line per text.
() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a),
    g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a),
    a: 1,
  });
  const light = ({ r, g, b }) => {
    const part = (value) => ((value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const canvas = parse(getComputedStyle(document.body).backgroundColor);
  function ground(element) {
    const layers = [];
    for (let node = element; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.a) layers.push(color);
      if (color.a === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), canvas);
  }
  function faded(element) {
    let part = 1;
    for (let node = element; node; node = node.parentElement) part *= Number(getComputedStyle(node).opacity);
    return part;
  }
  const bad = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.nodeValue.trim();
    const style = getComputedStyle(element);
    if (!text || !element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) continue;
    if (element.closest(".vh, .skip, script, style, noscript, datalist, option, :disabled")) continue;
    looked += 1;
    const below = ground(element);
    const color = parse(style.color);
    const shown = over({ ...color, a: color.a * faded(element) }, below);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const found = ratio(shown, below);
    if (found < (large ? 3 : 4.5)) bad.push(`${found.toFixed(2)} ${element.className} ${text.slice(0, 40)}`);
  }
  return { looked, bad };
}
