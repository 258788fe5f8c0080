// Text on its ground, as WCAG 2 counts: [text, ratio, size] of all that is seen and below what it must be.
() => {
  const channels = (color) => {
    const found = color.match(/[\d.]+/g).map(Number);
    return { rgb: found.slice(0, 3), alpha: found[3] ?? 1 };
  };
  const over = (top, ground) => top.rgb.map((value, i) => value * top.alpha + ground[i] * (1 - top.alpha));
  const groundOf = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const layer = channels(getComputedStyle(one).backgroundColor);
      if (layer.alpha > 0) layers.unshift(layer);
      if (layer.alpha === 1) break;
    }
    return layers.reduce((ground, layer) => over(layer, ground), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join(" ").trim();
    const style = getComputedStyle(element);
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (element.closest(".unseen, option, :disabled")) continue;
    const ground = groundOf(element);
    const [a, b] = [light(over(channels(style.color), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) faint.push([text.slice(0, 40), Math.round(ratio * 100) / 100, size]);
  }
  return faint;
}
