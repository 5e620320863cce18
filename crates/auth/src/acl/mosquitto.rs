//! Conversion of Mosquitto's `acl_file` to rules.
//!
//! ```text
//! topic read public/#                 clients without a user name, until the first `user` line
//! user alice
//! topic readwrite alice/#             only alice
//! topic deny alice/secret
//! pattern write devices/%c/state      all clients, regardless of its position
//! ```
//!
//! Mosquitto's order is preserved: for each user first the denials, then the other rules as written; then the patterns
//! of all users, again denials first. `read` becomes subscribe, `write` publish, `deny` both. Compile with `no_match =
//! Deny`.
//!
//! Differences:
//! - Mosquitto grants every subscription and filters deliveries. Here a subscription that the rules do not cover is
//!   rejected, unless [`super::PartialSubscription::Filter`] is configured. A subscription that is denied entirely is
//!   always rejected.
//! - In Mosquitto, a client whose id or user name contains `+` or `#` gets no access from any pattern. Here patterns
//!   without placeholders still apply. Mosquitto accepts values with `/` or a leading `$`; here they are unsafe (see
//!   [`super`]).
//! - A literal `%c`, `%u`, `${clientid}`, `${username}` or leading `eq ` in a `topic` line cannot be expressed and is
//!   an error: most likely `pattern` was intended.
//! - `pattern` also supports `${clientid}` and `${username}`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::rule::{AccessAction, AccessRule, CompiledRule, Permission, has_special_meaning};
use super::{AclErrorKind, RULES_MAX};

const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Reads an ACL file. Reports every invalid line.
pub fn load_mosquitto_acl(path: &Path) -> Result<Vec<AccessRule>, AclFileErrors> {
    let failed = |kind| AclFileErrors {
        path: path.to_owned(),
        errors: vec![AclFileError { line: 0, kind }],
    };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    read.map_err(|error| failed(AclFileErrorKind::Io(error.kind())))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(AclFileErrorKind::TooLarge));
    }
    parse_mosquitto_acl(path, &text)
}

/// As [`load_mosquitto_acl`], from text that is already read. `path` is used in messages.
pub fn parse_mosquitto_acl(path: &Path, text: &str) -> Result<Vec<AccessRule>, AclFileErrors> {
    let mut file = AclFile::default();
    let mut errors = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Err(kind) = file.add_line(line) {
            errors.push(AclFileError { line: index + 1, kind });
        }
    }
    if errors.is_empty() {
        Ok(file.into_rules())
    } else {
        Err(AclFileErrors {
            path: path.to_owned(),
            errors,
        })
    }
}

#[derive(Default)]
struct AclFile {
    current_user: Option<String>,
    topics: Vec<AccessRule>,
    patterns: Vec<AccessRule>,
}

impl AclFile {
    fn add_line(&mut self, line: &str) -> Result<(), AclFileErrorKind> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (keyword, rest.trim()) {
            ("user" | "topic" | "pattern", "") => Err(AclFileErrorKind::Incomplete),
            ("user", name) => {
                self.current_user = Some(name.to_owned());
                Ok(())
            }
            ("topic", rest) => self.add_topic(rest),
            ("pattern", rest) => self.add_pattern(rest),
            _ => Err(AclFileErrorKind::Keyword),
        }
    }

    fn add_topic(&mut self, rest: &str) -> Result<(), AclFileErrorKind> {
        let mut rule = access_and_topic(rest)?;
        if has_special_meaning(&rule.topics[0]) {
            return Err(AclFileErrorKind::SpecialMeaning);
        }
        match &self.current_user {
            Some(name) => rule.users = Some(vec![name.clone()]),
            None => rule.anonymous = Some(true),
        }
        self.checked(rule).map(|rule| self.topics.push(rule))
    }

    fn add_pattern(&mut self, rest: &str) -> Result<(), AclFileErrorKind> {
        let rule = access_and_topic(rest)?;
        self.checked(rule).map(|rule| self.patterns.push(rule))
    }

    fn checked(&self, rule: AccessRule) -> Result<AccessRule, AclFileErrorKind> {
        if self.topics.len() + self.patterns.len() >= RULES_MAX {
            return Err(AclFileErrorKind::Rule(AclErrorKind::TooManyRules { max: RULES_MAX }));
        }
        match CompiledRule::compile(&rule) {
            Ok(_) => Ok(rule),
            Err(mut kinds) => Err(AclFileErrorKind::Rule(kinds.swap_remove(0))),
        }
    }

    /// Moves denials to the front. Sorting across users is correct, because rules of different users never apply to one
    /// session.
    fn into_rules(mut self) -> Vec<AccessRule> {
        let is_allow = |rule: &AccessRule| rule.permission == Permission::Allow;
        self.topics.sort_by_key(is_allow);
        self.patterns.sort_by_key(is_allow);
        self.topics.append(&mut self.patterns);
        self.topics
    }
}

/// Parses `[read|write|readwrite|deny] topic`. A single word is always a topic. A topic may contain spaces only after
/// an explicit access.
fn access_and_topic(text: &str) -> Result<AccessRule, AclFileErrorKind> {
    let Some((access, topic)) = text.split_once(' ') else {
        return Ok(AccessRule::allow(AccessAction::All, &[text]));
    };
    let topic = &[topic.trim()];
    match access {
        "read" => Ok(AccessRule::allow(AccessAction::Subscribe, topic)),
        "write" => Ok(AccessRule::allow(AccessAction::Publish, topic)),
        "readwrite" => Ok(AccessRule::allow(AccessAction::All, topic)),
        "deny" => Ok(AccessRule::deny(AccessAction::All, topic)),
        _ => Err(AclFileErrorKind::Access),
    }
}

/// All invalid lines. Displayed as one `file:line: reason` per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclFileErrors {
    pub path: PathBuf,
    pub errors: Vec<AclFileError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclFileError {
    /// Line number from 1, or 0 for the whole file.
    pub line: usize,
    pub kind: AclFileErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AclFileErrorKind {
    Io(io::ErrorKind),
    TooLarge,
    Keyword,
    Incomplete,
    Access,
    SpecialMeaning,
    Rule(AclErrorKind),
}

impl fmt::Display for AclFileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (index, AclFileError { line, kind }) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            match line {
                0 => write!(f, "{separator}{path}: {kind}")?,
                line => write!(f, "{separator}{path}:{line}: {kind}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for AclFileErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AclFileErrorKind::Io(kind) => write!(f, "cannot read the ACL file: {kind}"),
            AclFileErrorKind::TooLarge => write!(f, "the ACL file is larger than {FILE_BYTES_MAX} bytes"),
            AclFileErrorKind::Keyword => f.write_str("the line must begin with `user`, `topic` or `pattern`"),
            AclFileErrorKind::Incomplete => f.write_str("the value after the keyword is missing"),
            AclFileErrorKind::Access => f.write_str("the access must be `read`, `write`, `readwrite` or `deny`"),
            AclFileErrorKind::SpecialMeaning => f.write_str(
                "a `topic` line cannot contain a placeholder or begin with `eq `; use `pattern` for placeholders",
            ),
            AclFileErrorKind::Rule(kind) => kind.fmt(f),
        }
    }
}

impl std::error::Error for AclFileErrors {}
