//! Options of authentication and authorization.

use std::path::PathBuf;

use auth::PasswordHash;

use crate::config::key::Segment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::rules::Rules;
use crate::config::value::{Unset, choice};

choice! {
    /// From where clients may come without a user name.
    pub enum Anonymous { Never = "never", Loopback = "loopback", Always = "always" }
}

choice! {
    /// What holds when no rule matches.
    pub enum NoMatch { Deny = "deny", Allow = "allow" }
}

choice! {
    /// What happens to a subscription of which the rules allow only a part.
    pub enum PartialSubscription { Refuse = "refuse", Filter = "filter" }
}

choice! {
    /// Who may take over a session.
    pub enum SessionOwner {
        /// The user who opened it.
        SameUser = "same_user",
        Any = "any",
    }
}

section! {
    /// Who may connect, and what they may publish and subscribe to.
    pub struct Access at [Fixed("access")] {
        /// Clients without a user name: `never`, from `loopback` only, or `always`. A proxy or tunnel on this machine makes
        /// all its clients loopback ones: let it send the PROXY protocol (`proxy_protocol`), or set `never`.
        restart anonymous: Anonymous = "loopback";
        /// Users and hashed passwords, one `user:hash` per line, as `tidewire passwd` and `mosquitto_passwd` write them. Read
        /// anew on SIGHUP: connections of users who are gone or have another hash are ended.
        live password_file: Unset<PathBuf> = "";
        /// Rules in Mosquitto's format (`user`, `topic`, `pattern`), checked after `rules`.
        live acl_file: Unset<PathBuf> = "";
        /// Rules in order; the first that matches decides. Each is a table:
        /// `{ permission = "allow", action = "subscribe", topics = ["devices/%c/#"], users = ["alice"] }`. `permission` is
        /// `allow` or `deny`, `action` is `publish`, `subscribe` or `all`; conditions are `users`, `clients`, `addresses`,
        /// `anonymous` and, when publishing, `qos` and `retain`. In a topic `%c` is the client id and `%u` the user name;
        /// `eq ` before it takes it literally. Without any rule, whoever may connect may publish and subscribe to everything but
        /// the server's own topics.
        live rules: Rules = "";
        /// What holds for a user when no rule matches: `deny` or `allow`.
        live no_match: NoMatch = "deny";
        /// A subscription of which the rules allow only a part: refuse it, as EMQX does, or `filter` what is delivered, as
        /// Mosquitto does.
        live partial_subscription: PartialSubscription = "refuse";
        /// Who may take over a session: the `same_user` who opened it, or `any` who knows the client id.
        live session_owner: SessionOwner = "same_user";
    }
}

/// `access.users.<user>`: a table with free keys, so not a struct.
pub const USERS: Section = Section {
    path: &[Fixed("access"), Fixed("users")],
    doc: &[" Users beside those of `access.password_file`."],
    options: &[OptionDef {
        name: "<user>",
        doc: &[" Hashed password, as `tidewire passwd` prints it."],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Live,
        kind: Kind::of::<PasswordHash>(),
    }],
};
