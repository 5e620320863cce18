//! The seeds of the fuzz targets: every short well-formed packet of the table, and topics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{V3_1, V5, cases};

/// Pairs of filter and topic, each on its own line.
const TOPICS: &[(&str, &str)] = &[
    ("multi", "sport/tennis/#\nsport/tennis/player1/ranking"),
    ("parent", "sport/#\nsport"),
    ("single", "+/tennis/+\nsport/tennis/player1"),
    ("empty_levels", "/+//\n/a//"),
    ("system", "$SYS/#\n$SYS/broker"),
    ("shared", "$share/group/a/+/b\na/x/b"),
    ("scripts", "é/€/𝄞\né/€/𝄞"),
];

/// Returns the directory of the seeds.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds")
}

/// Fuzz targets whose seeds are generated, each with its own directory.
pub fn targets() -> BTreeSet<String> {
    let files = files().into_keys();
    files
        .filter_map(|path| path.split_once('/').map(|(target, _)| target.to_owned()))
        .collect()
}

/// Returns the seeds: path below the directory, and content.
pub fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for case in cases()
        .into_iter()
        .filter(|case| case.packet().is_some() && case.bytes.len() < 300)
    {
        let name: String = case
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        let is_connect = case.bytes[0] >> 4 == 1;
        let targets = [
            (is_connect, "decode_connect"),
            (
                case.versions[0] != V5 && (case.versions != [V3_1] || !is_connect),
                "decode_v3",
            ),
            (case.versions.contains(&V5), "decode_v5"),
        ];
        for (_, target) in targets.iter().filter(|(is_wanted, _)| *is_wanted) {
            files.insert(format!("{target}/{name}"), case.bytes.clone());
        }
    }
    for (name, text) in TOPICS {
        files.insert(format!("topic/{name}"), text.as_bytes().to_vec());
    }
    files
}
