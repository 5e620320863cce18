// Mercator projection as on web maps: x and y run from 0 to 1 over the whole world.

export interface Position {
  latitude: number;
  longitude: number;
}
export interface Frame {
  x: number;
  y: number;
  /** Visible share of the world's width. */ width: number;
}

const LATITUDE_MAX = 85;
const EARTH_M = 40_075_017;
const WIDTH_MIN = 1e-6;

export const isPlace = (latitude: unknown, longitude: unknown): boolean =>
  Number.isFinite(latitude) &&
  Number.isFinite(longitude) &&
  Math.abs(latitude as number) <= 90 &&
  Math.abs(longitude as number) <= 180;

export function project({ latitude, longitude }: Position): { x: number; y: number } {
  const bounded = Math.min(LATITUDE_MAX, Math.max(-LATITUDE_MAX, latitude));
  const sine = Math.sin((bounded * Math.PI) / 180);
  return { x: longitude / 360 + 0.5, y: 0.5 - Math.log((1 + sine) / (1 - sine)) / (4 * Math.PI) };
}

export function unproject(x: number, y: number): Position {
  return { longitude: (x - 0.5) * 360, latitude: (Math.atan(Math.sinh((0.5 - y) * 2 * Math.PI)) * 180) / Math.PI };
}

/** Returns a frame around all positions, with a margin. `aspect` is width divided by height. */
export function around(all: Position[], aspect: number): Frame {
  const places = all.map(project);
  const [xs, ys] = [places.map(({ x }) => x), places.map(({ y }) => y)];
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const width = Math.min(1, Math.max(WIDTH_MIN * 20, (right - left) * 1.3, (bottom - top) * 1.3 * aspect));
  return { x: (left + right) / 2 - width / 2, y: (top + bottom) / 2 - width / aspect / 2, width };
}

export function zoomed(frame: Frame, factor: number, aspect: number): Frame {
  const width = Math.min(1, Math.max(WIDTH_MIN, frame.width * factor));
  return { x: frame.x + (frame.width - width) / 2, y: frame.y + (frame.width - width) / aspect / 2, width };
}

/** Degrees between two grid lines, chosen so that there are only a few. */
export function step(degrees: number): number {
  const most = degrees / 4;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * power).find((one) => one >= most) ?? 10 * power;
}

/** Length of the scale bar as text, and its share of the frame width, measured at the middle. */
export function scale(frame: Frame, aspect: number): { text: string; share: number } {
  const { latitude } = unproject(frame.x, frame.y + frame.width / aspect / 2);
  const metres = frame.width * EARTH_M * Math.cos((latitude * Math.PI) / 180);
  const power = 10 ** Math.floor(Math.log10(metres / 5));
  const length = [5, 2, 1].map((n) => n * power).find((one) => one <= metres / 5) ?? power;
  return {
    text: length >= 1000 ? `${length / 1000} km` : `${Number(length.toPrecision(1))} m`,
    share: length / metres,
  };
}
