// Numbers, sizes and times for people. Pure.

export function size(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  let value = bytes;
  for (const unit of ["kB", "MB", "GB", "TB"]) { value /= 1000; if (value < 999.95) return `${value.toFixed(1)} ${unit}`; }
  return `${(value / 1000).toFixed(1)} PB`;
}

export const count = (value: number): string => value.toLocaleString("en-US");
export const several = (value: number, what: string, plural = `${what}s`): string => `${count(value)} ${value === 1 ? what : plural}`;

export function ago(moment: string, now = Date.now()): string {
  const seconds = (now - Date.parse(moment)) / 1000;
  if (Number.isNaN(seconds)) return moment;
  if (seconds < 45) return "just now";
  const steps: [number, string][] = [[60, "minute"], [60, "hour"], [24, "day"], [30.44, "month"], [12, "year"]];
  let value = seconds, name = "second";
  for (const [length, unit] of steps) { if (value < length * (unit === "minute" ? 0.75 : 1)) break; value /= length; name = unit; }
  const whole = Math.max(1, Math.round(value));
  return `${whole} ${name}${whole === 1 ? "" : "s"} ago`;
}

export const exact = (moment: string): string => `${new Date(moment).toISOString().replace("T", " ").slice(0, 19)} UTC`;
export const shortId = (id: string): string => id.slice(0, 8);

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const large = Math.abs(value);
  if (Number.isInteger(value) && large < 1e9) return large < 1e4 ? String(value) : count(value);
  return large >= 1e6 || large < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

/** Round places for the ticks of a scale, at most `most` of them. */
export function ticks(low: number, high: number, most: number, steps: number[] = []): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (rough >= 1 && steps.find((one) => one >= rough)) || [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) || rough;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}
