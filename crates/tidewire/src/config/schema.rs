//! Queries on the set of all options: whether a key is known, which keys are possible, and which key was probably
//! meant.

use super::key::{KeySegment, OptionKey, pattern_text};
use super::option::{OptionDef, Section};
use super::options::SECTIONS;

pub enum SchemaLookup {
    Option(&'static OptionDef),
    /// A table on the way to options.
    Table,
    Unknown,
}

/// Names that other brokers use: (their name, our key).
const FOREIGN: &[(&str, &str)] = &[
    ("acl_no_match", "access.no_match"),
    ("allow_anonymous", "access.anonymous"),
    ("cacertfile", "tls.ca_file"),
    ("cafile", "tls.ca_file"),
    ("certfile", "tls.cert_file"),
    ("crlfile", "listeners.tls.default.crl_file"),
    ("enable_ocsp_stapling", "listeners.tls.default.ocsp_stapling"),
    ("exclusive_subscription_available", "mqtt.exclusive_subscription"),
    ("issuer_pem", "listeners.tls.default.ocsp_issuer_file"),
    ("keyfile", "tls.key_file"),
    ("listener", "listeners.tcp.default.bind"),
    ("log_dest", "log.file"),
    ("log_type", "log.level"),
    ("max_clientid_len", "mqtt.max_client_id_length"),
    ("max_inflight_messages", "mqtt.max_inflight"),
    ("max_keepalive", "mqtt.max_keep_alive"),
    ("max_mqueue_len", "mqtt.max_queued_messages"),
    ("max_qos_allowed", "mqtt.max_qos"),
    ("max_retained_messages", "retained.max_messages"),
    ("max_topic_alias", "mqtt.max_topic_alias_in"),
    ("message_size_limit", "mqtt.max_packet_size"),
    ("mqueue_store_qos0", "mqtt.queue_qos0"),
    ("msg_expiry_interval", "retained.default_expiry"),
    ("peer_cert_as_clientid", "listeners.tls.default.peer_cert_as_client_id"),
    ("peer_cert_as_username", "listeners.tls.default.peer_cert_as_user_name"),
    ("persistent_client_expiration", "mqtt.default_session_expiry"),
    ("port", "listeners.tcp.default.bind"),
    ("queue_qos0_messages", "mqtt.queue_qos0"),
    ("refresh_http_timeout", "tls.ocsp.timeout"),
    ("require_certificate", "listeners.tls.default.verify_client"),
    ("responder_url", "listeners.tls.default.ocsp_responder_url"),
    ("session_expiry_interval", "mqtt.default_session_expiry"),
    ("shared_subscription_strategy", "mqtt.shared_strategy"),
    ("sys_interval", "sys.interval"),
    ("sys_msg_interval", "sys.interval"),
    (
        "use_identity_as_username",
        "listeners.tls.default.peer_cert_as_user_name",
    ),
    (
        "use_subject_as_username",
        "listeners.tls.default.peer_cert_as_user_name",
    ),
];

pub fn lookup(words: &[&str]) -> SchemaLookup {
    if let Some(def) = SECTIONS.iter().find_map(|section| option_in(section, words)) {
        return SchemaLookup::Option(def);
    }
    if SECTIONS.iter().any(|section| is_prefix(words, section)) {
        SchemaLookup::Table
    } else {
        SchemaLookup::Unknown
    }
}

fn option_in(section: &'static Section, words: &[&str]) -> Option<&'static OptionDef> {
    let (name, table) = words.split_last()?;
    if table.len() != section.path.len() || !is_prefix(table, section) {
        return None;
    }
    section
        .options
        .iter()
        .find(|def| def.name == *name || (def.is_map_entry() && !name.is_empty()))
}

fn is_prefix(words: &[&str], section: &Section) -> bool {
    words.len() <= section.path.len()
        && words
            .iter()
            .zip(section.path)
            .all(|(word, segment)| segment.matches(word))
}

/// Returns the message for an unknown key.
pub fn explain_unknown(key: &OptionKey) -> String {
    let words = key.words();
    let (name, table) = words.split_last().expect("a key has at least one word");
    let meant = misplaced(name, table)
        .or_else(|| closest(name, table).map(|word| did_you_mean(&OptionKey::of(table).child(word))))
        .or_else(|| {
            FOREIGN
                .iter()
                .find(|(word, _)| word == name)
                .map(|(_, ours)| did_you_mean(&ours))
        })
        .or_else(|| in_other_section(name).map(|key| did_you_mean(&key)));
    match meant {
        Some(meant) => format!("unknown key; {meant}"),
        None => "unknown key; `tidewire config reference` lists all keys".into(),
    }
}

fn did_you_mean(what: &dyn std::fmt::Display) -> String {
    format!("did you mean `{what}`?")
}

/// The option exists, but for another kind of listener.
fn misplaced(name: &str, table: &[&str]) -> Option<String> {
    let section = SECTIONS.iter().find(|section| {
        section.path.len() == table.len()
            && section
                .path
                .first()
                .is_some_and(|first| matches!(first, KeySegment::Fixed(word) if table[0] == *word))
            && section.options.iter().any(|def| def.name == name)
    })?;
    Some(format!("only `{}` has it", pattern_text(section.path)))
}

fn closest(name: &str, table: &[&str]) -> Option<&'static str> {
    input_errors::nearest(name, children(table))
}

/// An option of that name in another section.
fn in_other_section(name: &str) -> Option<OptionKey> {
    let section = SECTIONS
        .iter()
        .filter(|section| {
            section
                .path
                .iter()
                .all(|segment| matches!(segment, KeySegment::Fixed(_)))
        })
        .find(|section| section.options.iter().any(|def| def.name == name))?;
    let words = section.path.iter().map(|segment| match segment {
        KeySegment::Fixed(word) => *word,
        _ => unreachable!("filtered above"),
    });
    Some(OptionKey::of(
        &words
            .chain([section.options.iter().find(|def| def.name == name)?.name])
            .collect::<Vec<_>>(),
    ))
}

/// The words that may follow `table`.
fn children(table: &[&str]) -> Vec<&'static str> {
    let mut children = Vec::new();
    for section in SECTIONS.iter().filter(|section| is_prefix(table, section)) {
        match section.path.get(table.len()) {
            Some(KeySegment::Fixed(word)) => children.push(*word),
            Some(KeySegment::OneOf(words)) => children.extend(*words),
            Some(KeySegment::Any(_)) => {}
            None => children.extend(
                section
                    .options
                    .iter()
                    .filter(|def| !def.is_map_entry())
                    .map(|def| def.name),
            ),
        }
    }
    children
}

/// Every key that can be written without choosing a name, for completion.
pub fn complete_keys() -> Vec<String> {
    let mut keys = Vec::new();
    for section in SECTIONS {
        for prefix in expand(section) {
            let options = section.options.iter().filter(|def| !def.is_map_entry());
            keys.extend(options.map(|def| prefix.child(def.name).to_string()));
        }
    }
    keys
}

/// The tables that a pattern stands for, with `default` for a free name.
fn expand(section: &Section) -> Vec<OptionKey> {
    let mut keys = vec![OptionKey::default()];
    for segment in section.path {
        let words = match segment {
            KeySegment::Fixed(word) => vec![*word],
            KeySegment::OneOf(words) => words.to_vec(),
            KeySegment::Any(_) => vec!["default"],
        };
        keys = keys
            .iter()
            .flat_map(|key| words.iter().map(|word| key.child(word)))
            .collect();
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::value::RawOptionValue;

    #[test]
    fn unknown_keys_are_explained() {
        for (key, text) in [
            ("mqtt.max_packet_sise", "did you mean `mqtt.max_packet_size`?"),
            ("mqtt.max_pakcet_size", "did you mean `mqtt.max_packet_size`?"),
            ("mqt", "did you mean `mqtt`?"),
            ("listeners.tpc", "did you mean `listeners.tcp`?"),
            ("listeners.tcp.x.bnid", "did you mean `listeners.tcp.x.bind`?"),
            (
                "listeners.tcp.x.cert_file",
                "only `listeners.(tls|wss|quic).<name>` has it",
            ),
            ("listeners.tls.x.path", "only `listeners.(ws|wss).<name>` has it"),
            (
                "listeners.tls.x.max_data_streams",
                "only `listeners.quic.<name>` has it",
            ),
            ("max_qos", "did you mean `mqtt.max_qos`?"),
            ("allow_anonymous", "did you mean `access.anonymous`?"),
            ("mqtt.max_mqueue_len", "did you mean `mqtt.max_queued_messages`?"),
            ("mqtt.zzz", "`tidewire config reference` lists all keys"),
            ("zzz.yyy", "`tidewire config reference` lists all keys"),
        ] {
            let key = OptionKey::parse(key).expect(key);
            assert!(matches!(lookup(&key.words()), SchemaLookup::Unknown), "{key}");
            assert_eq!(explain_unknown(&key), format!("unknown key; {text}"), "{key}");
        }
    }

    #[test]
    fn known_keys_are_found() {
        for key in [
            "mqtt.max_qos",
            "listeners.wss.x.path",
            "access.users.bob",
            "mqtt.shared_strategies.\"a/b\"",
        ] {
            assert!(
                matches!(
                    lookup(&OptionKey::parse(key).expect(key).words()),
                    SchemaLookup::Option(_)
                ),
                "{key}"
            );
        }
        for key in ["mqtt", "listeners", "listeners.tls", "listeners.tls.x", "access.users"] {
            assert!(
                matches!(lookup(&OptionKey::parse(key).expect(key).words()), SchemaLookup::Table),
                "{key}"
            );
        }
    }

    #[test]
    fn every_definition_is_sound() {
        for section in SECTIONS {
            for def in section.options.iter().filter(|def| !def.is_map_entry()) {
                let where_it_is = format!("{}.{}", pattern_text(section.path), def.name);
                let shown = (def.kind.normalize)(def, &RawOptionValue::Text(def.default.into())).expect(&where_it_is);
                let again = (def.kind.normalize)(def, &RawOptionValue::Toml(shown.clone())).expect(&where_it_is);
                assert_eq!(
                    shown, again,
                    "{where_it_is}: the displayed value parses to the same value"
                );
                if let Some((min, max)) = def.range {
                    for bound in [min, max] {
                        (def.kind.normalize)(def, &RawOptionValue::Text(bound.into())).expect(&where_it_is);
                    }
                }
                assert!(
                    def.doc.last().is_some_and(|line| line.ends_with('.')),
                    "{where_it_is}: its doc is a sentence"
                );
            }
        }
    }

    #[test]
    fn errors_about_values_contain_no_rust() {
        let values = r#"value = [5, -5, 1.5, "", "x", true, [], [1], [{ x = 1 }], {}, { x = 1 }, { type = 1 }, { sql = [] },
            { type = "http", enable = 1, sql = "x", actions = "x", parameters = 5 }, { sql = "x", actions = [5] }]"#;
        let values: toml::Table = values.parse().expect("a list of values");
        for def in SECTIONS.iter().flat_map(|section| section.options) {
            for value in values["value"].as_array().expect("a list") {
                let Err(error) = (def.kind.normalize)(def, &RawOptionValue::Toml(value.clone())) else {
                    continue;
                };
                for word in [
                    "struct ", "enum ", "variant", "tuple", "sequence", "a map", "u32", "u64", "i64",
                ] {
                    assert!(!error.contains(word), "{} = {value}: {error}", def.name);
                }
            }
        }
    }

    #[test]
    fn foreign_names_lead_to_known_keys() {
        for (theirs, ours) in FOREIGN {
            let key = OptionKey::parse(ours).expect(ours);
            assert!(
                !matches!(lookup(&key.words()), SchemaLookup::Unknown),
                "{theirs} leads to {ours}, which is unknown"
            );
        }
        assert!(FOREIGN.is_sorted(), "the list is sorted");
    }
}
