//! Authorization of EMQX: the rules of `acl.conf` and of the built-in database.
//!
//! EMQX asks its sources in order, and the first rule that matches decides. The rules of the database for a client id
//! come before those for a user name, and those before the rules for all. A source that tidewire cannot ask could deny
//! access that a later source allows: behind it, rules that allow something are left out.

use auth::{AccessAction, Permission};

use super::acl_file;
use super::term::{Table, Term};
use crate::import::access::{ALL_TOPICS, Clients, ForeignRule, ForeignTopic, PacketCondition, wider};
use crate::import::report::{Outcome, Report};
use crate::import::settings::Setting;
use crate::import::setup::Setup;
use crate::journal_command::summary::count;

/// Placeholders of EMQX in topics that tidewire does not know.
const UNKNOWN_PLACEHOLDERS: [&str; 3] = ["${cert_common_name}", "${client_attrs.", "${zone}"];
const DATABASE: &str = "mnesia/emqx_acl";
/// Keys of the database: all clients, a user name, a client id.
const KEY_USER: i64 = 1;
const KEY_CLIENT: i64 = 2;

pub struct Authorization<'s, 'r> {
    setup: &'s mut Setup,
    report: &'r Report,
    /// Why rules that allow something are left out.
    closed_by: Option<String>,
    /// Decision of EMQX without a matching rule, if it is not configured.
    no_match_default: &'static str,
}

impl<'s, 'r> Authorization<'s, 'r> {
    pub fn new(setup: &'s mut Setup, report: &'r Report, no_match_default: &'static str) -> Authorization<'s, 'r> {
        Authorization {
            setup,
            report,
            closed_by: None,
            no_match_default,
        }
    }

    pub fn import(&mut self, authorization: &Setting<'_>, database: Option<&Table>) {
        let mut is_database_used = false;
        for source in authorization.get("sources").items() {
            if !source.get("enable").flag(true) {
                source.refuse("the source is disabled");
                continue;
            }
            match source.get("type").text() {
                Some("file") => self.file(&source),
                Some("built_in_database") => {
                    is_database_used = true;
                    self.database(database);
                    source.imported("access.rules");
                }
                kind => {
                    let kind = kind.unwrap_or("unknown");
                    source.refuse(&format!("tidewire has no source of access rules of type {kind}"));
                    self.closed_by = Some(format!(
                        "EMQX asks the source of type {kind} first, which could deny it"
                    ));
                }
            }
        }
        if let (false, Some(table)) = (is_database_used, database)
            && table.len() > 0
        {
            let because = "no enabled source of authorization uses the built-in database".to_owned();
            self.report.add(
                DATABASE,
                0,
                &count(table.len(), "row"),
                Outcome::NotSupported { because },
            );
        }
        self.no_match(authorization);
        let deny_action = authorization.get("deny_action");
        match deny_action.is("disconnect") {
            true => deny_action.refuse("a rejected packet never disconnects the client"),
            false => deny_action.imported("as in tidewire"),
        }
        authorization
            .get("cache")
            .refuse("tidewire evaluates the rules of a session once, when it connects");
    }

    fn no_match(&mut self, authorization: &Setting<'_>) {
        let no_match = authorization.get("no_match");
        match (no_match.text().unwrap_or(self.no_match_default), &self.closed_by) {
            ("allow", Some(because)) => {
                no_match.changed("access.no_match", &format!("deny, because {because}"));
                self.setup.set("access.no_match", &no_match.path, "deny");
            }
            ("allow", None) => {
                no_match.imported("access.no_match");
                self.setup.set("access.no_match", &no_match.path, "allow");
            }
            _ => {
                no_match.imported("access.no_match");
                self.setup.set("access.no_match", &no_match.path, "deny");
                // Without rules, `no_match` has no effect.
                if !self.setup.has_rules() {
                    let rule = ForeignRule {
                        permission: Permission::Deny,
                        clients: Ok(Clients::all()),
                        packets: Ok(vec![PacketCondition::default()]),
                        topics: all_topics(),
                    };
                    let _ = rule.add(self.setup);
                }
            }
        }
    }

    fn file(&mut self, source: &Setting<'_>) {
        let rules = source.get("rules");
        let Some(text) = rules.text() else {
            let because = "the archive does not contain the file; write its rules to access.rules";
            source.refuse(because);
            self.closed_by = Some("the rules of an access file are missing in the archive".to_owned());
            return;
        };
        match acl_file::parse(text) {
            Ok(terms) => {
                for (index, (line, term)) in terms.iter().enumerate() {
                    let item = format!("rule {}", index + 1);
                    let outcome = self.add(file_rule(term));
                    rules.note_line(*line, &item, outcome);
                }
            }
            Err((line, problem)) => {
                let because = format!("line {line} of the rules is invalid: {problem}");
                rules.note_line(line, "rules", Outcome::NotSupported { because });
                self.closed_by = Some("the rules of an access file are invalid".to_owned());
            }
        }
        source.imported("access.rules");
    }

    fn database(&mut self, table: Option<&Table>) {
        let Some(table) = table else {
            let because = "the archive does not contain the table, or it cannot be read".to_owned();
            self.report
                .add(DATABASE, 0, "access rules", Outcome::NotSupported { because });
            self.closed_by = Some("the access rules of the built-in database are missing".to_owned());
            return;
        };
        let key_of = |record: &super::term::Record<'_>| match record.get("who").map(Term::tuple) {
            Some([Term::Integer(kind), _]) => *kind,
            _ => 0,
        };
        for kind in [KEY_CLIENT, KEY_USER, 0] {
            for record in table.records().filter(|record| key_of(record) == kind) {
                let name = record
                    .get("who")
                    .and_then(|who| who.tuple().get(1))
                    .and_then(Term::text);
                let (owner, clients) = match (kind, name) {
                    (KEY_CLIENT, Some(id)) => (format!("client {id}"), Ok(Clients::client(id))),
                    (KEY_USER, Some(user)) => (format!("user {user}"), Ok(Clients::user(user))),
                    (0, _) => ("all clients".to_owned(), Ok(Clients::all())),
                    _ => ("unknown".to_owned(), Err("its client or user is not UTF-8".to_owned())),
                };
                let rules = record.get("rules").and_then(Term::list).unwrap_or_default();
                for (index, term) in rules.iter().enumerate() {
                    let outcome = self.add(database_rule(term, clients.clone()));
                    self.report
                        .add(DATABASE, 0, &format!("{owner} rule {}", index + 1), outcome);
                }
            }
        }
    }

    fn add(&mut self, rule: Result<ForeignRule, String>) -> Outcome {
        let rule = match rule {
            Ok(rule) => rule,
            Err(because) => {
                // It could have been a rule that denies something.
                self.closed_by
                    .get_or_insert_with(|| "an access rule before it cannot be read".to_owned());
                return Outcome::NotSupported { because };
            }
        };
        if let (Permission::Allow, Some(because)) = (rule.permission, &self.closed_by) {
            return Outcome::NotSupported {
                because: because.clone(),
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
                    self.closed_by
                        .get_or_insert_with(|| "a rule before it that denies access is left out".to_owned());
                }
                Outcome::NotSupported { because }
            }
        }
    }
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
fn database_rule(term: &Term, owner: Result<Clients, String>) -> Result<ForeignRule, String> {
    match term.tuple() {
        [permission, action, topic] => foreign_rule(permission, owner, action, topic),
        [permission, who, action, topic] => {
            let clients = owner.and_then(|owner| owner.and(&clients_of(who, 0)?));
            foreign_rule(permission, clients, action, topic)
        }
        _ => Err("it is not an access rule of the built-in database".to_owned()),
    }
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
    let topics = match topics {
        topics if topics.is_atom("all") => all_topics(),
        Term::List(topics) => topics.iter().map(topic_of).collect(),
        topic => vec![topic_of(topic)],
    };
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
        because: "its topic cannot be read".to_owned(),
    };
    if let [tag, topic] = term.tuple()
        && tag.is_atom("eq")
    {
        return topic.text().map(|topic| format!("eq {topic}")).ok_or_else(unreadable);
    }
    let topic = term.text().ok_or_else(unreadable)?;
    match UNKNOWN_PLACEHOLDERS
        .iter()
        .find(|placeholder| topic.contains(*placeholder))
    {
        Some(placeholder) => Err(ForeignTopic {
            wider: wider(topic, placeholder),
            because: format!("the placeholder {} is unknown", placeholder.trim_end_matches('.')),
        }),
        None => Ok(topic.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(rules: &str) -> (Vec<Outcome>, String) {
        let mut setup = Setup::new().expect("random bytes");
        let report = Report::default();
        let mut authorization = Authorization::new(&mut setup, &report, "allow");
        let terms = acl_file::parse(rules).expect("valid");
        let outcomes = terms
            .iter()
            .map(|(_, term)| authorization.add(file_rule(term)))
            .collect();
        let rules = setup.rules_text();
        (outcomes, rules)
    }

    fn is_imported(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Imported(_))
    }

    #[test]
    fn rules_of_the_file_become_access_rules() {
        let (outcomes, rules) = outcomes(
            "{allow, {'and', [{username, {re, \"^dash$\"}}, {ipaddr, \"10.0.0.0/8\"}]}, subscribe, [\"$SYS/#\"]}.\n\
             {deny, {'or', [{user, \"a\"}, {client, \"c\"}]}, {publish, [{qos, [1, 2]}, {retain, true}]}, [\"x/${clientid}\"]}.\n\
             {deny, all, subscribe, [\"$SYS/#\", {eq, \"#\"}]}.\n{allow, all}.",
        );
        assert!(outcomes.iter().all(is_imported), "{outcomes:?}");
        let expected = "allow users=dash addresses=10.0.0.0/8 Subscribe $SYS/#\n\
                        deny users=a Publish qos=[1, 2] retain=true x/${clientid}\n\
                        deny clients=c Publish qos=[1, 2] retain=true x/${clientid}\n\
                        deny Subscribe $SYS/# eq #\n\
                        allow All # $SYS/#\n";
        assert_eq!(rules, expected);
    }

    #[test]
    fn what_cannot_be_translated_never_widens_access() {
        let (outcomes, rules) = outcomes(
            "{allow, {username, {re, \"^a.*\"}}, all, [\"x\"]}.\n\
             {deny, {username, {re, \"^a.*\"}}, all, [\"y\"]}.\n\
             {deny, all, all, [\"a/b/${client_attrs.x}/c\"]}.\n\
             {allow, all, all, [\"z/${cert_common_name}\", \"w\"]}.",
        );
        assert!(matches!(outcomes[0], Outcome::NotSupported { .. }), "{outcomes:?}");
        assert!(
            outcomes[1..].iter().all(|one| matches!(one, Outcome::Changed { .. })),
            "{outcomes:?}"
        );
        assert_eq!(rules, "deny All y\ndeny All a/b/#\nallow All w\n");
    }

    #[test]
    fn rules_behind_an_unreadable_one_allow_nothing() {
        let (outcomes, rules) = outcomes("{maybe, all}.\n{allow, all}.\n{deny, all, all, [\"x\"]}.");
        assert!(matches!(outcomes[1], Outcome::NotSupported { .. }), "{outcomes:?}");
        assert_eq!(rules, "deny All x\n");
    }
}
