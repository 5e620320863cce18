import { describe, expect, it } from "vitest";
import { around, isPlace, project, scale, step, unproject, zoomed } from "./projection";

describe("projection", () => {
  it("known_points_of_web_mercator", () => {
    expect(project({ latitude: 0, longitude: 0 })).toEqual({ x: 0.5, y: 0.5 });
    // The square world ends at 85.0511 degrees, and at the date line.
    expect(project({ latitude: 85, longitude: 180 }).x).toBe(1);
    expect(project({ latitude: 85, longitude: 0 }).y).toBeCloseTo(0.00162, 4);
    expect(project({ latitude: 90, longitude: 0 }).y).toBe(project({ latitude: 85, longitude: 0 }).y);
  });

  it("unproject_reverses_project", () => {
    const berlin = { latitude: 52.52, longitude: 13.405 };
    const { x, y } = project(berlin);
    expect(unproject(x, y).latitude).toBeCloseTo(berlin.latitude, 9);
    expect(unproject(x, y).longitude).toBeCloseTo(berlin.longitude, 9);
  });

  it("places_are_checked", () => {
    expect(isPlace(90, -180)).toBe(true);
    expect(isPlace(90.1, 0)).toBe(false);
    expect(isPlace("52", 13)).toBe(false);
    expect(isPlace(NaN, 13)).toBe(false);
  });
});

describe("frame", () => {
  it("contains_all_positions_with_a_margin", () => {
    const all = [
      { latitude: 40, longitude: -10 },
      { latitude: 60, longitude: 30 },
    ];
    const frame = around(all, 2);
    for (const { x, y } of all.map(project)) {
      expect(x).toBeGreaterThan(frame.x);
      expect(x).toBeLessThan(frame.x + frame.width);
      expect(y).toBeGreaterThan(frame.y);
      expect(y).toBeLessThan(frame.y + frame.width / 2);
    }
  });

  it("of_one_position_has_a_width", () => {
    expect(around([{ latitude: 52, longitude: 13 }], 2).width).toBeGreaterThan(0);
  });

  it("zoom_keeps_the_centre_and_is_bounded", () => {
    const frame = { x: 0.4, y: 0.4, width: 0.2 };
    const half = zoomed(frame, 0.5, 2);
    expect(half.width).toBeCloseTo(0.1);
    expect(half.x + half.width / 2).toBeCloseTo(0.5);
    expect(half.y + half.width / 4).toBeCloseTo(0.45);
    expect(zoomed(frame, 100, 2).width).toBe(1);
    expect(zoomed(frame, 0, 2).width).toBe(1e-6);
  });
});

describe("grid and scale bar", () => {
  it.each([
    [360, 100],
    [40, 10],
    [9, 5],
    [4, 1],
    [0.3, 0.1],
  ])("%s degrees have lines every %s", (degrees, expected) => expect(step(degrees)).toBeCloseTo(expected, 9));

  it("scale_bar_is_a_round_length_of_at_most_a_fifth", () => {
    const equator = scale({ x: 0.4, y: 0.4, width: 0.2 }, 1);
    expect(equator.text).toBe("1000 km");
    expect(equator.share).toBeCloseTo(1_000_000 / (0.2 * 40_075_017), 6);
    expect(scale({ x: 0.5, y: 0.5, width: 1e-6 }, 1).text).toBe("5 m");
  });
});
