//! Options of rules and connectors: where rule files are, and definitions that stand in the configuration itself.

use std::path::PathBuf;

use integration::{ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition};

use crate::config::declared::Table;
use crate::config::key::Segment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::value::Unset;

section! {
    /// Rules and what they send to. What is defined here or in the tables below is pinned: the API shows it and does not change it. What
    /// the API defines is kept in the data directory.
    pub struct Integration at [Fixed("integration")] {
        /// Directory of rule files: each `NAME.sql` is the rule NAME. docs/rules.md says what is in them.
        live rules_dir: Unset<PathBuf> = "";
    }
}

macro_rules! tables {
    ($($const:ident $section:literal $name:literal $type:ty: $about:literal, $doc:literal;)*) => {$(
        pub const $const: Section = Section {
            path: &[Fixed($section)],
            doc: &[$about],
            options: &[OptionDef {
                name: $name,
                doc: &[$doc],
                default: "",
                range: None,
                unit: None,
                apply: Apply::Live,
                kind: Kind::of::<Table<$type>>(),
            }],
        };
    )*};
}

tables! {
    CONNECTORS "connectors" "<connector>" ConnectorDefinition:
        " Connectors: where actions send to and sources take from. docs/connectors.md has the types.",
        " A table `[connectors.NAME]` with `type` and `config`. A secret may be `env:NAME` or `file:PATH`.";
    ACTIONS "actions" "<action>" ActionDefinition:
        " Actions: what rules send, with their buffers.",
        " A table `[actions.NAME]` with `type`, `connector`, `parameters` and `delivery`; rules name it `type:NAME`.";
    SOURCES "sources" "<source>" SourceDefinition:
        " Sources: what comes in from other systems.",
        " A table `[sources.NAME]` with `type`, `connector`, `parameters` and `publish`.";
    RULES "rules" "<rule>" RuleDefinition:
        " Rules beside those of `integration.rules_dir`.",
        " A table `[rules.ID]` with `sql` and `actions`.";
}
