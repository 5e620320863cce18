//! Authorization of EMQX: the rules of `acl.conf` and of the built-in database, and sources that ask another system.
//!
//! EMQX asks its sources in order, and the first rule that matches decides. The rules of the database for a client id
//! come before those for a user name, and those before the rules for all. A source that tidewire cannot ask, and a rule
//! that it cannot read, could deny access that a later rule allows. Behind it, rules that allow something and other
//! sources are left out, and `no_match` is `deny`. The same applies if the archive names no sources: EMQX then uses
//! `etc/acl.conf`, which the archive does not contain. A rule that allows something is only left out if it cannot be
//! read.

use std::time::Duration;

use auth::{AccessAction, Permission};

use super::acl_file;
use super::providers;
use super::term::{Record, Table, Term};
use super::unreadable::Unreadable;
use crate::config::units::format_duration;
use crate::import::access::{
    ALL_TOPICS, Clients, ForeignRule, ForeignTopic, LITERAL, PacketCondition, wider, without_user_names,
};
use crate::import::report::{Outcome, Report};
use crate::import::settings::{Setting, duration_ms};
use crate::import::setup::Setup;
use crate::journal_command::summary::count;

/// Placeholders of EMQX in topics that tidewire does not know.
const UNKNOWN_PLACEHOLDERS: [&str; 3] = ["${cert_common_name}", "${client_attrs.", "${zone}"];
/// Placeholders of tidewire that are ordinary text in EMQX.
const OWN_PLACEHOLDERS: [&str; 2] = ["%c", "%u"];
const NO_USER_NAMES: &str = "without authentication, clients have no user names";
const TOKEN_NAMES: &str =
    "EMQX compares the token of a client with user names (from = username of jwt), and tidewire a claim of it";
/// `access.rules` in `access.sources`.
const RULES: &str = "rules";
const SOURCES: &str = "access.sources";
/// Maxima of the decisions that a session stores.
const CACHE_SIZE_MAX: u64 = 1000;
const CACHE_TTL_MS_MAX: u64 = 86_400_000;
const UNREADABLE_TOPIC: &str = "its topic cannot be read";
const HOW_TO_OPEN: &str = "to open access, change access.rules and access.no_match";
const DATABASE: &str = "mnesia/emqx_acl";
/// Keys of the database: all clients, a user name, a client id.
const KEY_ALL: i64 = 0;
const KEY_USER: i64 = 1;
const KEY_CLIENT: i64 = 2;
const NO_SOURCES: &str =
    "the archive names no sources; EMQX then uses etc/acl.conf, which the archive does not contain";

/// The clients to which a record of the database applies.
enum Owner<'t> {
    Client(&'t str),
    User(&'t str),
    All,
}

impl<'t> Owner<'t> {
    /// `None`: the key is unknown, or its name is not UTF-8.
    fn of(record: &Record<'t>) -> Option<Owner<'t>> {
        let who = record.get("who")?;
        match (who, who.tuple()) {
            (Term::Integer(KEY_ALL), _) => Some(Owner::All),
            (_, [Term::Integer(KEY_USER), name]) => name.text().map(Owner::User),
            (_, [Term::Integer(KEY_CLIENT), name]) => name.text().map(Owner::Client),
            _ => None,
        }
    }

    /// EMQX asks the records in this order.
    fn rank(&self) -> u8 {
        match self {
            Owner::Client(_) => 0,
            Owner::User(_) => 1,
            Owner::All => 2,
        }
    }

    fn clients(&self) -> Clients {
        match self {
            Owner::Client(id) => Clients::client(id),
            Owner::User(name) => Clients::user(name),
            Owner::All => Clients::all(),
        }
    }

    fn shown(&self) -> String {
        match self {
            Owner::Client(id) => format!("client {id}"),
            Owner::User(name) => format!("user {name}"),
            Owner::All => "all clients".to_owned(),
        }
    }
}

/// The built-in database.
pub struct Database<'t> {
    pub rules: Option<&'t Table>,
    /// The archive has rules for clients of a namespace as well.
    pub has_namespaces: bool,
}

pub struct Authorization<'s, 'r> {
    setup: &'s mut Setup,
    report: &'r Report,
    /// Why rules that allow something are left out.
    closed_by: Option<String>,
    /// Decision of EMQX without a matching rule, if it is not configured.
    no_match_default: &'static str,
    /// All clients are anonymous. EMQX compares the name that a client sends, also without authentication.
    is_anonymous: bool,
    /// In EMQX, the user names of some clients are their tokens.
    pub has_token_names: bool,
    /// The value of `access.sources`.
    sources: Vec<&'static str>,
}

impl<'s, 'r> Authorization<'s, 'r> {
    /// The setup has the result of the import of the authentication.
    pub fn new(
        setup: &'s mut Setup,
        report: &'r Report,
        no_match_default: &'static str,
        closed_by: Option<String>,
    ) -> Authorization<'s, 'r> {
        let is_anonymous = setup.has("access.unknown_users");
        Authorization {
            setup,
            report,
            closed_by,
            no_match_default,
            is_anonymous,
            has_token_names: false,
            sources: Vec::new(),
        }
    }

    pub fn import(mut self, authorization: &Setting<'_>, database: &Database<'_>) {
        self.include_mountpoint(authorization);
        let sources = authorization.get("sources");
        let mut is_database_used = false;
        if !sources.exists() {
            let because = format!("{NO_SOURCES}; replace the rules in access.rules with its rules");
            let outcome = Outcome::NotSupported { because };
            self.report.add(super::CONFIG, 0, "authorization.sources", outcome);
            self.close("the rules of etc/acl.conf are missing in the archive");
        }
        for source in sources.items() {
            match source.get("enable").flag(true) {
                Ok(true) => {}
                Ok(false) => {
                    source.refuse("the source is disabled");
                    continue;
                }
                Err(because) => {
                    source.refuse_all(&because);
                    self.close("it is not known whether a source before it is enabled");
                    continue;
                }
            }
            let kind = source.get("type").text().unwrap_or("unknown");
            is_database_used |= kind == "built_in_database";
            let precondition = source.get("precondition");
            if precondition.exists() && !precondition.is("") {
                source.refuse_all("it applies to some clients only (precondition), which tidewire does not support");
                self.close("a source before it applies to some clients only");
                continue;
            }
            precondition.imported("as in tidewire");
            match kind {
                "file" => {
                    self.begin_rules();
                    self.file(&source);
                }
                "built_in_database" => {
                    self.begin_rules();
                    self.database(database);
                    source.imported("access.rules");
                }
                "http" => self.remote("http", &source),
                "postgresql" => self.remote("postgresql", &source),
                "mysql" => self.remote("mysql", &source),
                "mongodb" => self.remote("mongodb", &source),
                "redis" => self.remote("redis", &source),
                kind => {
                    source.refuse(&format!("tidewire has no source of access rules of type {kind}"));
                    self.close(&first_source(kind));
                }
            }
        }
        if let (false, Some(table)) = (is_database_used, database.rules) {
            self.unused_database(table);
        }
        if self.has_remote() {
            self.setup.set(SOURCES, &sources.path, self.sources.clone());
        }
        self.no_match(authorization);
        let deny_action = authorization.get("deny_action");
        match deny_action.text() {
            Some(action @ ("ignore" | "disconnect")) => {
                self.setup.set("access.deny_action", &deny_action.path, action);
                deny_action.imported("access.deny_action");
            }
            _ => deny_action.refuse("its value is neither ignore nor disconnect"),
        }
        self.cache(&authorization.get("cache"));
    }

    fn has_remote(&self) -> bool {
        self.sources.iter().any(|source| *source != RULES)
    }

    /// The rules of files and of the database have one place among the sources. Rules with another place could allow
    /// what a source between them denies.
    fn begin_rules(&mut self) {
        if !self.sources.contains(&RULES) {
            self.sources.push(RULES);
        } else if self.sources.last() != Some(&RULES) {
            self.close("EMQX asks another source before it, and all rules of tidewire come before this source");
        }
    }

    /// Imports a source that asks another system.
    fn remote(&mut self, kind: &'static str, source: &Setting<'_>) {
        let draft = match &self.closed_by {
            Some(because) => Err(format!("{because}; to ask it, add it to access.sources")),
            None if self.is_anonymous => Err(NO_USER_NAMES.to_owned()),
            None if self.has_token_names => Err(TOKEN_NAMES.to_owned()),
            None if self.sources.contains(&kind) => Err(format!("tidewire has one source {kind}")),
            None => providers::source(kind, source),
        };
        match draft {
            Ok(draft) => {
                draft.install(self.setup);
                self.sources.push(kind);
                for key in ["type", "enable"] {
                    source.get(key).imported(SOURCES);
                }
            }
            Err(because) => {
                source.refuse_all(&because);
                self.close(&first_source(kind));
            }
        }
    }

    /// Only decisions of an HTTP service are stored.
    fn cache(&mut self, cache: &Setting<'_>) {
        const SIZE: &str = "access.source.http.cache_size";
        const TTL: &str = "access.source.http.cache_ttl";
        if !self.sources.contains(&"http") {
            cache.refuse("tidewire evaluates the rules of a session once, when it connects");
            return;
        }
        let (enable, size, ttl) = (cache.get("enable"), cache.get("max_size"), cache.get("ttl"));
        let excludes = cache.get("excludes");
        if enable.flag(true) != Ok(true) || !excludes.items().is_empty() {
            self.setup.set(SIZE, &cache.path, 0);
            enable.imported(SIZE);
            cache.changed(
                SIZE,
                "0: the service is asked about each action, also about topics that are not excluded",
            );
            return;
        }
        enable.imported(SIZE);
        match size.number() {
            Some(number) if number <= CACHE_SIZE_MAX => {
                self.setup.set(SIZE, &size.path, number as i64);
                size.imported(SIZE);
            }
            Some(_) => {
                self.setup.set(SIZE, &size.path, CACHE_SIZE_MAX as i64);
                size.changed(SIZE, &format!("{CACHE_SIZE_MAX}, the largest possible value"));
            }
            None => size.refuse("its value is not a number"),
        }
        match ttl.text().and_then(duration_ms).filter(|ms| *ms <= CACHE_TTL_MS_MAX) {
            Some(ms) => {
                self.setup
                    .set(TTL, &ttl.path, format_duration(Duration::from_millis(ms)));
                ttl.imported(TTL);
            }
            None => ttl.refuse("its value has no counterpart in access.source.http.cache_ttl"),
        }
        excludes.imported(SIZE);
    }

    /// From now on, nothing is allowed. The first reason is reported.
    fn close(&mut self, because: &str) {
        self.closed_by.get_or_insert_with(|| because.to_owned());
    }

    fn unused_database(&mut self, table: &Table) {
        if table.len() == 0 {
            return;
        }
        let because = "no enabled source of authorization uses the built-in database".to_owned();
        let rows = count(table.len(), "row");
        self.report.add(DATABASE, 0, &rows, Outcome::NotSupported { because });
        if !table.records().all(|record| only_allows(&record)) {
            self.close("rules of the built-in database that deny access are left out");
        }
    }

    /// Imports whether the rules see topics with mountpoints. The import of a listener with a mountpoint has set the
    /// default of EMQX.
    fn include_mountpoint(&mut self, authorization: &Setting<'_>) {
        const OPTION: &str = "access.include_mountpoint";
        let include = authorization.get("include_mountpoint");
        match include.flag(false) {
            Ok(_) if !include.exists() => {}
            Ok(flag) => {
                self.setup.set(OPTION, &include.path, flag);
                include.imported(OPTION);
            }
            Err(because) => {
                include.refuse(&because);
                self.close("it is not known whether rules see topics with mountpoints");
            }
        }
    }

    fn no_match(&mut self, authorization: &Setting<'_>) {
        const OPTION: &str = "access.no_match";
        let no_match = authorization.get("no_match");
        let theirs = match no_match.exists() {
            true => no_match.text().unwrap_or_default(),
            false => self.no_match_default,
        };
        let decision = match (theirs, &self.closed_by) {
            ("allow", Some(because)) => {
                let because = format!("deny, because {because}; {HOW_TO_OPEN}");
                no_match.changed(OPTION, &because);
                if !no_match.exists() {
                    let to = OPTION.to_owned();
                    let item = &no_match.path;
                    self.report
                        .add(super::CONFIG, 0, item, Outcome::Changed { to, because });
                }
                "deny"
            }
            ("allow", None) => {
                no_match.imported(OPTION);
                "allow"
            }
            ("deny", _) => {
                no_match.imported(OPTION);
                "deny"
            }
            _ => {
                no_match.changed(OPTION, "deny, because its value is unknown");
                "deny"
            }
        };
        self.setup.set(OPTION, &no_match.path, decision);
        // Without rules and other sources, `no_match` has no effect.
        if decision == "deny" && !self.setup.has_rules() && !self.has_remote() {
            let rule = ForeignRule {
                permission: Permission::Deny,
                clients: Ok(Clients::all()),
                packets: Ok(vec![PacketCondition::default()]),
                topics: all_topics(),
            };
            let _ = rule.add(self.setup);
        }
    }

    fn file(&mut self, source: &Setting<'_>) {
        let rules = source.get("rules");
        let Some(text) = rules.text() else {
            let because = "the archive does not contain the file; write its rules to access.rules";
            source.refuse(because);
            self.close("the rules of an access file are missing in the archive");
            return;
        };
        match acl_file::parse(text) {
            Ok(terms) => {
                for (index, (line, term)) in terms.iter().enumerate() {
                    let item = format!("rule {}", index + 1);
                    let outcome = self.add(term, file_rule(term));
                    rules.note_line(*line, &item, outcome);
                }
            }
            Err((line, problem)) => {
                let because = format!("line {line} of the rules is invalid: {problem}");
                source.refuse(&because);
                rules.note_line(line, "rules", Outcome::NotSupported { because });
                self.close("the rules of an access file are invalid");
            }
        }
        source.imported("access.rules");
    }

    fn database(&mut self, database: &Database<'_>) {
        if database.has_namespaces {
            self.close("the access rules of namespaces are left out");
        }
        let Some(table) = database.rules else {
            let because = "the archive does not contain the table, or it cannot be read".to_owned();
            self.report
                .add(DATABASE, 0, "access rules", Outcome::NotSupported { because });
            self.close("the access rules of the built-in database are missing");
            return;
        };
        let mut unreadable = Unreadable::default();
        let mut records = Vec::new();
        for record in table.records() {
            match Owner::of(&record) {
                Some(owner) => records.push((owner, record)),
                None => {
                    unreadable.add("the client or user is unknown".to_owned());
                    // It could deny any client, before all other rules.
                    if !only_allows(&record) {
                        self.close("a rule of the built-in database cannot be read");
                    }
                }
            }
        }
        records.sort_by_key(|(owner, _)| owner.rank());
        for (owner, record) in records {
            let Some(rules) = record.get("rules").and_then(Term::list) else {
                unreadable.add("the rules are not a list".to_owned());
                self.close("a rule of the built-in database cannot be read");
                continue;
            };
            for (index, term) in rules.iter().enumerate() {
                let outcome = self.add(term, database_rule(term, owner.clients()));
                let item = format!("{} rule {}", owner.shown(), index + 1);
                self.report.add(DATABASE, 0, &item, outcome);
            }
        }
        unreadable.report(DATABASE, "record", self.report);
    }

    /// `term` is the rule in EMQX.
    fn add(&mut self, term: &Term, rule: Result<ForeignRule, String>) -> Outcome {
        let rule = match rule {
            Ok(rule) if self.is_anonymous => without_user_names(rule, None, NO_USER_NAMES),
            Ok(rule) if self.has_token_names => without_user_names(rule, None, TOKEN_NAMES),
            Ok(rule) => rule,
            Err(because) => {
                // It could deny something.
                if !allows(term) {
                    self.close("an access rule before it cannot be read");
                }
                return Outcome::NotSupported { because };
            }
        };
        if let (Permission::Allow, Some(because)) = (rule.permission, &self.closed_by) {
            return Outcome::NotSupported {
                because: format!("{because}; to allow it, add it to access.rules"),
            };
        }
        let is_deny = rule.permission == Permission::Deny;
        match rule.add(self.setup) {
            Ok(None) => Outcome::Imported("access.rules".to_owned()),
            Ok(Some(because)) => Outcome::Changed {
                to: "access.rules".to_owned(),
                because,
            },
            Err(because) => {
                if is_deny {
                    self.close("a rule before it that denies access is left out");
                }
                Outcome::NotSupported { because }
            }
        }
    }
}

fn first_source(kind: &str) -> String {
    format!("EMQX asks the source of type {kind} first, which could deny it")
}

fn all_topics() -> Vec<Result<String, ForeignTopic>> {
    ALL_TOPICS.iter().map(|topic| Ok((*topic).to_owned())).collect()
}

/// `{Permission, all}` or `{Permission, Who, Action, Topics}`.
fn file_rule(term: &Term) -> Result<ForeignRule, String> {
    let all = Term::Atom("all".to_owned());
    let (permission, who, action, topics) = match term.tuple() {
        [permission, who] if who.is_atom("all") => (permission, who, &all, &all),
        [permission, who, action, topics] => (permission, who, action, topics),
        _ => return Err("it is not a rule of acl.conf".to_owned()),
    };
    foreign_rule(permission, clients_of(who, 0), action, topics)
}

/// `{Permission, Action, Topic}`, or since EMQX 5.8 `{Permission, Who, Action, Topic}`.
fn database_rule(term: &Term, owner: Clients) -> Result<ForeignRule, String> {
    match term.tuple() {
        [permission, action, topic] => foreign_rule(permission, Ok(owner), action, topic),
        [permission, who, action, topic] => {
            let clients = clients_of(who, 0).and_then(|who| owner.and(&who));
            foreign_rule(permission, clients, action, topic)
        }
        _ => Err("it is not an access rule of the built-in database".to_owned()),
    }
}

/// Whether each rule of a record allows something.
fn only_allows(record: &Record<'_>) -> bool {
    let rules = record.get("rules").and_then(Term::list);
    rules.is_some_and(|rules| rules.iter().all(allows))
}

/// Whether a rule, which may not be readable, allows something.
fn allows(rule: &Term) -> bool {
    rule.tuple().first().and_then(Term::name) == Some("allow")
}

fn foreign_rule(
    permission: &Term,
    clients: Result<Clients, String>,
    action: &Term,
    topics: &Term,
) -> Result<ForeignRule, String> {
    let permission = match permission.name() {
        Some("allow") => Permission::Allow,
        Some("deny") => Permission::Deny,
        _ => return Err("it neither allows nor denies".to_owned()),
    };
    let topics: Vec<_> = match topics {
        topics if topics.is_atom("all") => all_topics(),
        Term::List(topics) => topics.iter().map(topic_of).collect(),
        topic => vec![topic_of(topic)],
    };
    let mut refused = topics.iter().filter_map(|topic| topic.as_ref().err());
    if permission == Permission::Deny && refused.any(|topic| topic.because == UNREADABLE_TOPIC) {
        return Err(UNREADABLE_TOPIC.to_owned());
    }
    Ok(ForeignRule {
        permission,
        clients,
        packets: packets_of(action),
        topics,
    })
}

fn clients_of(who: &Term, depth: usize) -> Result<Clients, String> {
    if depth > 8 {
        return Err("its conditions are nested too deeply".to_owned());
    }
    if who.is_atom("all") {
        return Ok(Clients::all());
    }
    let [kind, value] = who.tuple() else {
        return Err("its condition is unknown".to_owned());
    };
    let addresses = |terms: &[Term]| {
        let addresses: Option<Vec<String>> = terms.iter().map(|term| Some(term.text()?.to_owned())).collect();
        addresses
            .map(Clients::addresses)
            .ok_or_else(|| "its addresses cannot be read".to_owned())
    };
    match (kind.name(), value) {
        (Some("user" | "username"), value) => exact_name(value).map(|name| Clients::user(&name)),
        (Some("client" | "clientid"), value) => exact_name(value).map(|id| Clients::client(&id)),
        (Some("ipaddr"), address) => addresses(std::slice::from_ref(address)),
        (Some("ipaddrs"), Term::List(list)) => addresses(list),
        (Some("and"), Term::List(list)) => {
            let mut result = Clients::all();
            for condition in list {
                result = result.and(&clients_of(condition, depth + 1)?)?;
            }
            Ok(result)
        }
        (Some("or"), Term::List(list)) => {
            let mut result = Clients::none();
            for condition in list {
                result = result.or(clients_of(condition, depth + 1)?)?;
            }
            Ok(result)
        }
        (Some(kind), _) => Err(format!("tidewire has no condition {kind}")),
        (None, _) => Err("its condition is unknown".to_owned()),
    }
}

/// A name, or a regular expression that matches exactly one name.
fn exact_name(value: &Term) -> Result<String, String> {
    if let Some(name) = value.name() {
        return Ok(name.to_owned());
    }
    let pattern = match value.tuple() {
        [tag, pattern] if tag.is_atom("re") => pattern.text(),
        _ => None,
    };
    let pattern = pattern.ok_or("its name cannot be read")?;
    let exact = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$'));
    let is_plain = |name: &&str| {
        name.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ' | '@'))
    };
    exact
        .filter(is_plain)
        .map(str::to_owned)
        .ok_or_else(|| "access rules cannot contain regular expressions".to_owned())
}

fn packets_of(action: &Term) -> Result<Vec<PacketCondition>, String> {
    let (kind, options) = match action.tuple() {
        [kind, Term::List(options)] => (kind, options.as_slice()),
        _ => (action, &[] as &[Term]),
    };
    let (mut qos, mut retain) = (Vec::new(), None);
    for option in options {
        match option.tuple() {
            [key, value] if key.is_atom("qos") => qos.extend(levels(value)?),
            [key, value] if key.is_atom("retain") => match value.atom() {
                Some("all") => {}
                Some("true") => retain = Some(true),
                Some("false") => retain = Some(false),
                _ => return Err("its condition on the retain flag is unknown".to_owned()),
            },
            _ => return Err("its condition on messages is unknown".to_owned()),
        }
    }
    qos.sort_unstable();
    qos.dedup();
    let qos = (!qos.is_empty() && qos != [0, 1, 2]).then_some(qos);
    let publish = PacketCondition {
        action: AccessAction::Publish,
        qos: qos.clone(),
        retain,
    };
    match (kind.name(), &qos, retain) {
        (Some("publish"), ..) => Ok(vec![publish]),
        (Some("subscribe"), None, _) => Ok(vec![PacketCondition::of(AccessAction::Subscribe)]),
        (Some("all" | "pubsub"), None, None) => Ok(vec![PacketCondition::default()]),
        (Some("all" | "pubsub"), None, Some(_)) => Ok(vec![publish, PacketCondition::of(AccessAction::Subscribe)]),
        (Some("subscribe" | "all" | "pubsub"), Some(_), _) => {
            Err("rules for subscriptions have no condition on the QoS".to_owned())
        }
        _ => Err("its action is unknown".to_owned()),
    }
}

/// A list of small numbers is a string in the external term format.
fn levels(value: &Term) -> Result<Vec<u8>, String> {
    let level = |number: i64| u8::try_from(number).ok().filter(|level| *level <= 2);
    let levels: Option<Vec<u8>> = match value {
        Term::Integer(number) => level(*number).map(|level| vec![level]),
        Term::Bytes(bytes) => bytes.iter().map(|&byte| level(byte.into())).collect(),
        Term::List(items) => items.iter().map(|item| level(item.integer()?)).collect(),
        _ => None,
    };
    levels.ok_or_else(|| "its condition on the QoS is unknown".to_owned())
}

fn topic_of(term: &Term) -> Result<String, ForeignTopic> {
    let unreadable = || ForeignTopic {
        wider: "#".to_owned(),
        because: UNREADABLE_TOPIC.to_owned(),
    };
    if let [tag, topic] = term.tuple()
        && tag.is_atom("eq")
    {
        return topic
            .text()
            .map(|topic| format!("{LITERAL}{topic}"))
            .ok_or_else(unreadable);
    }
    let topic = term.text().ok_or_else(unreadable)?;
    if topic.starts_with(LITERAL) {
        return Ok(topic.to_owned());
    }
    let mut placeholders = UNKNOWN_PLACEHOLDERS.into_iter().chain(OWN_PLACEHOLDERS);
    match placeholders.find(|placeholder| topic.contains(*placeholder)) {
        Some(placeholder) => Err(ForeignTopic {
            wider: wider(topic, placeholder),
            because: format!("the placeholder {} is unknown", placeholder.trim_end_matches('.')),
        }),
        None => Ok(topic.to_owned()),
    }
}

#[cfg(test)]
mod tests;
