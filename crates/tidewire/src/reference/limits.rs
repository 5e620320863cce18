//! The page of all limits: those with an option, and those that are fixed.

use std::fmt::Write;

use crate::config::key::pattern_text;
use crate::config::option::{OptionDef, Section};
use crate::config::options::SECTIONS;
use crate::config::reference::{anchor, default_value};

const INTRODUCTION: &str = "\
This page lists all limits. Most have an option; some of these options are `\"unlimited\"` by default. The other limits
are constants. Limits of a tenant are in its [tenant profile](thingsboard-api.md#tenant-profiles).";

const OPTIONS: &str = "\
| option | default | limits |
|---|---|---|";

const DELIVERY: &str = "\
Buffers of actions have limits of their own: [`delivery.buffer`](connectors.md#delivery).";

/// The memory of QUIC connections is memory of the process. That of TCP sockets is memory of the kernel.
const QUIC_MEMORY: &str = "\
**Memory of QUIC connections.** The kernel limits the buffers of TCP connections (`net.ipv4.tcp_mem`). The buffers of
QUIC connections are in the memory of the server. N connections use at most N × 1.1 MiB and `limits.max_quic_windows`
together, if all clients are hostile: they send single bytes with gaps between them, and acknowledge no output. Before
CONNACK, a connection uses at most 0.3 MiB. N well-behaved connections use N × 22 KiB if they are idle, and at most
N × 54 KiB and `limits.max_quic_windows` otherwise. Output that waits for the QUIC connection counts in
`limits.output_buffer_bytes`, as with TCP. With `max_data_streams`, each stream of a hostile client adds at most
0.25 MiB, after CONNACK.";

/// The subject of a limit, the value, its unit, and the consequence of exceeding it.
type Fixed = (&'static str, u64, &'static str, &'static str);

pub fn page() -> String {
    let source = "the options and the files `fixed_limits.rs`";
    let mut page = super::head("Limits", source, INTRODUCTION);
    let _ = write!(page, "\n## Limits with an option\n\n{OPTIONS}\n");
    for section in SECTIONS {
        for def in section.options.iter().filter(|def| is_limit(def)) {
            page.push_str(&row(section, def));
        }
    }
    let _ = write!(page, "\n{DELIVERY}\n");
    for (title, limits) in fixed() {
        let has_quic = limits.first() == net::QUIC_LIMITS.first();
        let _ = write!(page, "\n## {title}\n\n| limit | value | beyond |\n|---|---|---|\n");
        for (what, amount, unit, beyond) in limits {
            let (what, amount) = (super::cell(what), amount_text(amount, unit));
            let _ = writeln!(page, "| {what} | {amount} | {beyond} |");
        }
        if has_quic {
            let _ = write!(page, "\n{QUIC_MEMORY}\n");
        }
    }
    page
}

fn fixed() -> [(&'static str, Vec<Fixed>); 7] {
    [
        (
            "Fixed limits of MQTT clients",
            [broker::FIXED_LIMITS, net::FIXED_LIMITS].concat(),
        ),
        ("Fixed limits of MQTT over QUIC", net::QUIC_LIMITS.to_vec()),
        (
            "Fixed limits of users, access rules and bans",
            auth::FIXED_LIMITS.to_vec(),
        ),
        ("Fixed limits of rules", {
            let mut limits = rules::fixed_limits();
            limits.extend(integration::FIXED_LIMITS);
            limits
        }),
        ("Fixed limits of the HTTP API", api::fixed_limits()),
        ("Fixed limits of devices", devices::FIXED_LIMITS.to_vec()),
        ("Fixed limits of the device platform", platform::fixed_limits()),
    ]
}

/// Options that bound something have a name that says so, or can be lifted with "unlimited".
fn is_limit(def: &OptionDef) -> bool {
    const WORDS: [&str; 7] = ["max", "maximum", "limit", "timeout", "bytes", "rate", "share"];
    let has_word = def.name.split('_').any(|word| WORDS.contains(&word));
    has_word || (def.kind.choices)().contains(&"unlimited")
}

fn row(section: &Section, def: &OptionDef) -> String {
    let path = pattern_text(section.path);
    let doc: Vec<&str> = def.doc.iter().map(|line| line.trim()).collect();
    let doc = super::cell(&doc.join(" "));
    let first = doc.split_once(". ").map_or(doc.as_str(), |(first, _)| first);
    let default = match default_value(def).to_string() {
        empty if empty == "\"\"" => "–".to_owned(),
        default => format!("`{default}`"),
    };
    format!(
        "| [`{}`](configuration.md#{}) | {default} | {} |\n",
        format!("{path}.{}", def.name).replace('|', "\\|"),
        anchor(&format!("{path}.{}", def.name)),
        super::sentence(first),
    )
}

fn amount_text(amount: u64, unit: &str) -> String {
    match unit {
        "bytes" => bytes_text(amount),
        "" => digits(amount),
        unit => format!("{} {unit}", digits(amount)),
    }
}

fn bytes_text(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{} bytes", digits(bytes))
}

/// Returns a number with commas between groups of three digits.
fn digits(number: u64) -> String {
    let plain = number.to_string();
    let mut text = String::new();
    for (index, digit) in plain.chars().enumerate() {
        if index > 0 && (plain.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
