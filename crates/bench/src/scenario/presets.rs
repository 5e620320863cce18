//! The compiled-in scenarios: one TOML file each.

use super::Scenario;
use super::diagnostic::did_you_mean;
use super::document::Document;

macro_rules! presets {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("presets/", $name, ".toml")))),*]
    };
}

/// Name and text, in the order of the list: the basic shapes, then the published tests.
pub const PRESETS: &[(&str, &str)] = presets!(
    "fanout" "fanin" "p2p" "pairs" "pairs-paced" "pairs-persistent" "shared" "connect-storm" "retained-replay" "idle"
    "reconnect" "offline-drain" "slow-subscribers"
    "tbmq-fanout" "tbmq-p2p"
    "nanomq-broadcast" "nanomq-million" "nanomq-million-qos1" "nanomq-million-qos2" "nanomq-one-to-one"
    "emqx-kafka"
    "thingsboard-a" "thingsboard-a-x10" "thingsboard-b" "thingsboard-c" "thingsboard-d" "thingsboard-e"
);

/// Returns a preset by its name; the error says which names are similar.
pub fn document(name: &str) -> Result<Document, String> {
    match PRESETS.iter().find(|(preset, _)| *preset == name) {
        Some((name, text)) => Ok(Document::of_text(name, text).expect("a test reads every preset")),
        None => {
            let hint = did_you_mean(name, PRESETS.iter().map(|(name, _)| *name));
            Err(format!(
                "unknown scenario or file `{name}`{hint}; `tidewire bench list` shows all scenarios"
            ))
        }
    }
}

pub fn all() -> impl Iterator<Item = Scenario> {
    PRESETS.iter().map(|(name, _)| {
        let document = document(name).expect("it is in the list");
        document.resolve().expect("a test resolves every preset")
    })
}
