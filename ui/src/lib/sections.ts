// Listeners as the configuration has them: a section each, such as `listeners.tcp.lan`.

import type { ConfigValue } from "../api/generated";

/** A name that is no word stands in quotes in a key: as in JSON, but for a character that TOML wants written in another way. */
const quoted = (name: string) => JSON.stringify(name).replaceAll("\u007f", "\\u007f");

export const sectionOf = (transport: string, name: string): string => `listeners.${transport}.${/^[A-Za-z0-9_-]+$/.test(name) ? name : quoted(name)}`;

export const optionsOf = (values: ConfigValue[], section: string): ConfigValue[] => values.filter((one) => one.key.startsWith(`${section}.`));

/** Of all listeners there are, those that are turned off too. */
export const sections = (values: ConfigValue[]): string[] => values.flatMap((one) => /^(listeners\..+)\.bind$/.exec(one.key)?.[1] ?? []);
