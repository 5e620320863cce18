//! The parts of the product that this build contains. Each is a cargo feature of this crate.

use std::fmt::Write;

use crate::cli::VERSION;

/// A part that a build can leave out.
struct BuildPart {
    feature: &'static str,
    is_present: bool,
    description: &'static str,
}

const fn part(feature: &'static str, is_present: bool, description: &'static str) -> BuildPart {
    BuildPart {
        feature,
        is_present,
        description,
    }
}

const PARTS: &[BuildPart] = &[
    part(
        "acme",
        cfg!(feature = "acme"),
        "certificates from an ACME authority such as Let's Encrypt",
    ),
    part("bench", cfg!(feature = "bench"), "load generator, also in the console"),
    part(
        "console",
        cfg!(feature = "console"),
        "web console and documentation under /docs",
    ),
    part("gssapi", cfg!(feature = "gssapi"), "Kerberos for Kafka"),
    part("jq", cfg!(feature = "jq"), "function jq of rules"),
    part(
        "kafka",
        cfg!(feature = "kafka"),
        "Kafka connectors, actions and sources",
    ),
    part(
        "kerberos",
        cfg!(feature = "kerberos"),
        "authentication of MQTT clients with Kerberos",
    ),
    part("ldap", cfg!(feature = "ldap"), "LDAP authentication"),
    part(
        "mongodb",
        cfg!(feature = "mongodb"),
        "authentication and access rules with MongoDB",
    ),
    part(
        "mysql",
        cfg!(feature = "mysql"),
        "authentication and access rules with MySQL and MariaDB",
    ),
    part(
        "parquet",
        cfg!(feature = "parquet"),
        "export of telemetry as Parquet files",
    ),
    part(
        "platform",
        cfg!(feature = "platform"),
        "device platform with ThingsBoard's API",
    ),
    part(
        "postgresql",
        cfg!(feature = "postgresql"),
        "PostgreSQL connectors, actions and authentication",
    ),
    part("quic", cfg!(feature = "quic"), "MQTT over QUIC"),
    part(
        "redis",
        cfg!(feature = "redis"),
        "Redis connectors, actions and authentication",
    ),
    part(
        "sqlite",
        cfg!(feature = "sqlite"),
        "authentication and access rules with SQLite files",
    ),
    part("top", cfg!(feature = "top"), "live view of a server in the terminal"),
];

/// Returns the text of `tidewire version`.
pub fn version(with_features: bool) -> String {
    let mut text = format!("tidewire {VERSION}\n");
    if with_features {
        list(&mut text, "contains", true);
        list(&mut text, "does not contain", false);
    }
    text
}

fn list(text: &mut String, title: &str, is_present: bool) {
    let mut parts = PARTS.iter().filter(|part| part.is_present == is_present).peekable();
    if parts.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "\n{title}:");
    for part in parts {
        let _ = writeln!(text, "  {:<12}{}", part.feature, part.description);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_listed() {
        // Groups of features, and a command that is not for users.
        const NOT_LISTED: [&str; 3] = ["default", "reference", "standard"];
        let manifest: toml::Table = toml::from_str(include_str!("../Cargo.toml")).unwrap();
        let features = manifest["features"].as_table().unwrap().keys();
        let mut expected: Vec<&str> = features.map(String::as_str).collect();
        expected.retain(|feature| !NOT_LISTED.contains(feature));
        expected.sort_unstable();
        let listed: Vec<&str> = PARTS.iter().map(|part| part.feature).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn parts_are_listed_with_their_presence() {
        let text = version(true);
        let (present, absent) = text.split_once("does not contain:").unwrap_or((&text, ""));
        for part in PARTS {
            let list = if part.is_present { present } else { absent };
            assert!(
                list.contains(&format!("\n  {:<12}{}\n", part.feature, part.description)),
                "{text}"
            );
        }
        assert_eq!(version(false), format!("tidewire {VERSION}\n"));
    }
}
