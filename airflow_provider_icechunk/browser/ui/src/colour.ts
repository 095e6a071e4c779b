// Colour scales of even steps for the eye, made in OKLCH and turned into sRGB. Pure.

export type Scale = "sequential" | "diverging";
type Rgb = [number, number, number];

function oklch(light: number, chroma: number, hue: number): Rgb {
  const angle = (hue * Math.PI) / 180, a = chroma * Math.cos(angle), b = chroma * Math.sin(angle);
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s];
  return linear.map((one) => {
    const value = Math.min(1, Math.max(0, one));
    return Math.round(255 * (value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055));
  }) as Rgb;
}

const mix = (from: number, to: number, share: number): number => from + (to - from) * share;

function colourAt(scale: Scale, share: number): Rgb {
  if (scale === "sequential") {
    return oklch(mix(0.24, 0.93, share), 0.06 + 0.1 * Math.sin(Math.PI * Math.min(1, share * 0.9 + 0.15)), mix(285, 95, share ** 0.85));
  }
  const far = Math.abs(share - 0.5) * 2;
  return oklch(mix(0.96, 0.42, far), 0.17 * Math.sin((Math.PI / 2) * Math.min(1, far * 1.15)), share < 0.5 ? 255 : 28);
}

const tables = new Map<Scale, Uint8Array>();

/** 256 colours, three bytes each. */
export function table(scale: Scale): Uint8Array {
  let made = tables.get(scale);
  if (!made) {
    made = new Uint8Array(256 * 3);
    for (let at = 0; at < 256; at++) made.set(colourAt(scale, at / 255), at * 3);
    tables.set(scale, made);
  }
  return made;
}

const LANES = [250, 150, 30, 330, 90, 200, 300, 60];
export function laneColour(lane: number, dark: boolean): string {
  const [r, g, b] = oklch(dark ? 0.74 : 0.58, 0.15, LANES[lane % LANES.length] ?? 250);
  return `rgb(${r} ${g} ${b})`;
}
