//! `tidewire config show`: the values in force as a TOML document that can be used as one.

use std::fmt::Write;

use super::key::{OptionKey, quoted};
use super::origin::ValueOrigin;
use super::resolve::EffectiveOption;

#[derive(Clone, Copy, Debug, Default)]
pub struct ShowOptions {
    /// Defaults too.
    pub all: bool,
    /// A comment behind each value that says where it came from.
    pub origin: bool,
}

/// Secrets are `***`; everything else reads back as the same configuration.
pub fn show(effective: &[EffectiveOption], options: ShowOptions) -> String {
    let mut text = String::new();
    let mut table = Vec::new();
    let shown = effective
        .iter()
        .filter(|value| options.all || value.origin != ValueOrigin::Default);
    for value in shown {
        let (name, parent) = value.key.0.split_last().expect("a key has at least one word");
        if parent != table {
            table = parent.to_vec();
            let separator = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{separator}[{}]", OptionKey(table.clone()));
        }
        let _ = write!(text, "{} = {}", quoted(name), value.value);
        if options.origin {
            let _ = write!(text, "  # {}", origin_comment(value));
        }
        text.push('\n');
    }
    if text.is_empty() {
        "# all options have their defaults; --all shows them\n".into()
    } else {
        text
    }
}

fn origin_comment(value: &EffectiveOption) -> String {
    let pinned = if value.origin.is_pinned() { ", pinned" } else { "" };
    format!("{}{pinned}", value.origin)
}
