//! Options of rules and connectors: where rule files are, and definitions that stand in the configuration itself.

use std::path::PathBuf;
use std::time::Duration;

use integration::{ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition};

use crate::config::declared::Table;
use crate::config::key::KeySegment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::value::{Switch, Unset};

section! {
    /// Rules and their targets. Definitions in the configuration are read-only in the API. Definitions that the API
    /// creates are stored in the data directory.
    pub struct Integration at [Fixed("integration")] {
        /// Directory of rule files: each file `NAME.sql` is the rule NAME.
        live rules_dir: Unset<PathBuf> = "";
        /// Maximum CPU time for evaluating a rule for one message. If a rule needs more, it fails for that message,
        /// and the server raises an alarm.
        live rule_time_max: Duration = "20ms" ["1ms", "10s"];
        /// CPU time of one evaluation from which a rule counts as slow. Slow rules run on separate threads with
        /// bounded queues, so that they do not delay other clients. The default is about a thousand times the time of
        /// an ordinary rule. `off` evaluates every rule on the thread of the client.
        live slow_rule_threshold: Switch<Duration> = "1ms" ["1ms", "1m"];
        /// Directory of the files that a secret of a definition can name as `file:PATH` if the definition is created
        /// over the API. Empty: none. Definitions in the configuration can name any file.
        restart secrets_dir: Unset<PathBuf> = "";
        /// Beginning of the environment variables that a secret of a definition can name as `env:NAME` if the
        /// definition is created over the API. Empty: none. Definitions in the configuration can name any variable.
        restart secrets_env_prefix: String = "TIDEWIRE_SECRET_";
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
        " Connectors: where actions send to and sources take from. docs/reference/connectors.md has the types.",
        " A table `[connectors.NAME]` with `type` and `config`. A secret may be `env:NAME` or `file:PATH`.";
    ACTIONS "actions" "<action>" ActionDefinition:
        " Actions: what rules send, with their buffers.",
        " A table `[actions.NAME]` with `type`, `connector`, `parameters` and `delivery`; rules name it `type:NAME`.";
    SOURCES "sources" "<source>" SourceDefinition:
        " Sources, which receive messages from other systems.",
        " A table `[sources.NAME]` with `type`, `connector`, `parameters` and `publish`.";
    RULES "rules" "<rule>" RuleDefinition:
        " Rules in addition to those of `integration.rules_dir`.",
        " A table `[rules.ID]` with `sql` and `actions`.";
}
