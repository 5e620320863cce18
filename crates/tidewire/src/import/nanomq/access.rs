//! Users and access rules of NanoMQ.

use auth::{AccessAction, Password, PasswordHash, Permission};

use super::flag;
use crate::import::access::{
    ALL_TOPICS, Clients, ForeignRule, ForeignTopic, PacketCondition, wider, without_user_names,
};
use crate::import::report::Outcome;
use crate::import::settings::Setting;
use crate::import::setup::Setup;

const NO_DECISION: &str = "its value is neither allow nor deny: access that no rule matches is denied";
const HTTP: &str = "NanoMQ asks the HTTP server of auth.http_auth, which could deny it";
const USER_LEFT_OUT: &str = "NanoMQ asks the HTTP server of auth.http_auth, which could reject the user; to admit it, add \
                             it with tidewire passwd";
const NOT_VERIFIED: &str = "with allow_anonymous, names without a password are not verified";
const LEFT_OUT: &str = "a rule is left out that could deny it";

/// Reasons of values that the configuration does not have.
const ALL_CLIENTS: &str = "always, because NanoMQ admits all clients without auth.allow_anonymous; to close it, set this \
                           option to never";
const ALL_TOPICS_ALLOWED: &str = "allow, because NanoMQ allows topics that no rule decides about without auth.no_match; \
                                  to close them, add rules to access.rules and set this option to deny";

/// How to open what the import has closed.
const OPEN_RULES: &str = "to open it, add it to access.rules";
const CLOSES_REST: &str = "It could deny access: rules behind it that allow something are left out, and \
                           access.no_match is deny; to open them, add its counterpart and them to access.rules";

/// Adds the rules. NanoMQ asks them in order, and the first rule that matches decides.
struct Rules<'s> {
    setup: &'s mut Setup,
    /// Why rules that allow something are left out: a part before them could deny it.
    closed_by: Option<&'static str>,
}

pub fn import(auth: &Setting<'_>, setup: &mut Setup) {
    let http = auth.get("http_auth");
    let asks_users = http.get("auth_req").exists();
    let asks_access = http.get("acl_req").exists();
    users(auth, asks_users, setup);
    let acl = auth.get("acl");
    let mut rules = Rules {
        setup,
        closed_by: asks_access.then_some(HTTP),
    };
    if acl.exists() && !acl.is_object() {
        rules.close(&acl, "it has no rules");
    }
    for rule in acl.get("rules").items() {
        rules.add(&rule);
    }
    let closed_by = rules.closed_by;
    let no_match = auth.get("no_match");
    let decision = match (no_match.text(), closed_by) {
        (None, None) if no_match.exists() => {
            no_match.refuse(NO_DECISION);
            "deny"
        }
        (None, None) => {
            changed(&no_match, "access.no_match", ALL_TOPICS_ALLOWED);
            "allow"
        }
        (Some("allow"), None) => {
            no_match.imported("access.no_match");
            "allow"
        }
        (None | Some("allow"), Some(because)) => {
            changed(
                &no_match,
                "access.no_match",
                &format!("deny, because {because}; {OPEN_RULES}"),
            );
            "deny"
        }
        (Some("deny"), _) => {
            no_match.imported("access.no_match");
            "deny"
        }
        (Some(_), _) => {
            no_match.refuse(NO_DECISION);
            "deny"
        }
    };
    setup.set("access.no_match", &no_match.path, decision);
    // Without rules, `no_match` has no effect.
    if decision == "deny" && !setup.has_rules() {
        let rule = ForeignRule {
            permission: Permission::Deny,
            clients: Ok(Clients::all()),
            packets: Ok(vec![PacketCondition::default()]),
            topics: all_topics(),
        };
        let _ = rule.add(setup);
    }
    let deny_action = auth.get("deny_action");
    match deny_action.is("disconnect") {
        true => deny_action.refuse("a rejected packet never disconnects the client"),
        false => deny_action.imported("as in tidewire"),
    }
    auth.get("cache")
        .refuse("tidewire evaluates the rules of a session once, when it connects");
    let because = match (asks_users, asks_access) {
        (_, true) => {
            "tidewire does not ask HTTP servers. Rules that allow something are left out, and access.no_match is deny; to \
             open access, add them to access.rules"
        }
        (true, false) => {
            "tidewire does not ask HTTP servers. No users are imported; to open access, add users with tidewire passwd, or \
             set access.anonymous"
        }
        (false, false) => "tidewire does not ask HTTP servers",
    };
    http.refuse(because);
}

fn users(auth: &Setting<'_>, asks_http: bool, setup: &mut Setup) {
    for (name, password) in auth.get("password").entries() {
        let Some(text) = password.filled() else {
            password.refuse("the password is empty or cannot be read");
            continue;
        };
        if asks_http {
            password.refuse(USER_LEFT_OUT);
            continue;
        }
        let hash = PasswordHash::create(&Password::new(text.as_bytes().to_vec())).map_err(|error| error.to_string());
        match hash.and_then(|hash| setup.add_user(name, hash, false)) {
            Ok(()) => password.changed("passwords", "the password is hashed with Argon2id"),
            Err(because) => password.refuse(&because),
        }
    }
    let allow = auth.get("allow_anonymous");
    match (flag(&allow, true), asks_http) {
        (Some(true), false) => {
            setup.set("access.anonymous", &allow.path, "always");
            setup.set("access.unknown_users", &allow.path, "anonymous");
            let because = match allow.exists() {
                true => "users with a password need it; NanoMQ admits them without",
                false => ALL_CLIENTS,
            };
            changed(&allow, "access.anonymous", because);
            return;
        }
        (Some(true), true) => changed(
            &allow,
            "access.anonymous",
            "never, because NanoMQ asks the HTTP server of auth.http_auth",
        ),
        (Some(false), _) => allow.imported("access.anonymous"),
        (None, _) => allow.refuse("its value is neither true nor false: anonymous clients are rejected"),
    }
    setup.set("access.anonymous", &allow.path, "never");
}

/// Notes a change of an option, also of one that the configuration does not have.
fn changed(setting: &Setting<'_>, to: &str, because: &str) {
    match setting.exists() {
        true => setting.changed(to, because),
        false => setting.note_missing(Outcome::Changed {
            to: to.to_owned(),
            because: because.to_owned(),
        }),
    }
}

fn all_topics() -> Vec<Result<String, ForeignTopic>> {
    ALL_TOPICS.iter().map(|topic| Ok((*topic).to_owned())).collect()
}

impl Rules<'_> {
    /// Leaves out a rule that could deny access. Rules behind it that allow something are left out too.
    fn close(&mut self, rule: &Setting<'_>, because: &str) {
        rule.refuse_all(&format!("{because}. {CLOSES_REST}"));
        self.closed_by.get_or_insert(LEFT_OUT);
    }

    fn add(&mut self, rule: &Setting<'_>) {
        let permission = match rule.get("permit").text() {
            Some("allow") => Permission::Allow,
            Some("deny") => Permission::Deny,
            _ => {
                self.close(rule, "it neither allows nor denies");
                return;
            }
        };
        if let (Permission::Allow, Some(because)) = (permission, self.closed_by) {
            rule.refuse_all(&format!("{because}; {OPEN_RULES}"));
            return;
        }
        let action = rule.get("action");
        let action = match action.text() {
            Some("publish") => Ok(AccessAction::Publish),
            Some("subscribe") => Ok(AccessAction::Subscribe),
            Some("pubsub") => Ok(AccessAction::All),
            None if !action.exists() => Ok(AccessAction::All),
            _ => Err("its action is unknown".to_owned()),
        };
        let topics = rule.get("topics");
        let foreign = ForeignRule {
            permission,
            clients: clients(rule),
            packets: action.map(|action| vec![PacketCondition::of(action)]),
            topics: match topics.exists() {
                true => topics.items().iter().map(topic).collect(),
                false => all_topics(),
            },
        };
        let foreign = match self.setup.has("access.unknown_users") {
            true => without_user_names(foreign, Some(self.setup.users()), NOT_VERIFIED),
            false => foreign,
        };
        match foreign.add(self.setup) {
            Ok(None) => rule.imported("access.rules"),
            Ok(Some(because)) => rule.changed("access.rules", &because),
            Err(because) if permission == Permission::Deny => self.close(rule, &because),
            Err(because) => rule.refuse_all(&because),
        }
    }
}

fn clients(rule: &Setting<'_>) -> Result<Clients, String> {
    if !rule.is_object() {
        return Err("its condition cannot be read".to_owned());
    }
    let mut result = Clients::all();
    for (key, value) in rule.entries() {
        let condition = match key {
            "permit" | "action" | "topics" => continue,
            "and" | "or" if value.items().is_empty() => return Err(format!("it has no conditions in `{key}`")),
            "and" => {
                let mut all = Clients::all();
                for part in value.items() {
                    all = all.and(&clients(&part)?)?;
                }
                all
            }
            "or" => {
                let mut any = Clients::none();
                for part in value.items() {
                    any = any.or(clients(&part)?)?;
                }
                any
            }
            key => single(key, value.text().ok_or("its condition cannot be read")?)?,
        };
        result = result.and(&condition)?;
    }
    Ok(result)
}

/// `#` means all users or client ids.
fn single(key: &str, value: &str) -> Result<Clients, String> {
    match (key, value) {
        ("username" | "clientid", "#") => Ok(Clients::all()),
        ("username", name) => Ok(Clients::user(name)),
        ("clientid", id) => Ok(Clients::client(id)),
        ("ipaddr", address) => Ok(Clients::addresses(vec![address.to_owned()])),
        (key, _) => Err(format!("tidewire has no condition {key}")),
    }
}

/// A topic behind `@` is compared literally, after its placeholders are filled in.
fn topic(topic: &Setting<'_>) -> Result<String, ForeignTopic> {
    let text = topic.text().unwrap_or_default();
    let is_special = |part: &&&str| match **part {
        "eq " => text.starts_with("eq "),
        part => text.contains(part) && !text.starts_with('@'),
    };
    if let Some(special) = ["eq ", "%c", "%u"].iter().find(is_special) {
        return Err(ForeignTopic {
            wider: wider(text, special),
            because: format!("`{special}` has a meaning in access rules"),
        });
    }
    match text.strip_prefix('@') {
        None => Ok(text.to_owned()),
        Some(literal) if !literal.contains("${") => Ok(format!("eq {literal}")),
        Some(literal) => Err(ForeignTopic {
            wider: literal.to_owned(),
            because: "a literal topic has no placeholders".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::hocon::Hocon;
    use crate::import::report::Report;

    /// Imports `auth`. Returns the rules, the decision without a match, and the report.
    fn imported(auth: &str) -> (String, Setup, String) {
        let hocon = Hocon::parse("nanomq.conf", auth, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        import(&Setting::root(&hocon, &report).get("auth"), &mut setup);
        (setup.rules_text(), setup, report.text("title"))
    }

    #[test]
    fn rules_behind_a_missing_denial_allow_nothing() {
        for rule in [
            r#"{"permit": "maybe", "topics": ["x"]}"#,
            r#"{"permit": "deny", "topics": ["a/#/b"]}"#,
        ] {
            let auth = format!(
                r##"auth {{ allow_anonymous = false, no_match = allow, acl {{ rules = [
                    {{"permit": "allow", "username": "a", "topics": ["before"]}}
                    {rule}
                    {{"permit": "allow", "topics": ["#"]}}
                    {{"permit": "deny", "topics": ["y"]}}
                ] }} }}"##
            );
            let (rules, setup, report) = imported(&auth);
            assert_eq!(rules, "allow users=a All before\ndeny All y\n", "{rule}");
            assert_eq!(setup.option("access.no_match"), Some("deny"), "{rule}");
            assert!(report.contains("deny, because a"), "{report}");
        }
    }

    #[test]
    fn values_that_cannot_be_read_close_access() {
        let (rules, setup, report) = imported("auth { allow_anonymous = maybe, no_match = perhaps }");
        assert_eq!(setup.option("access.anonymous"), Some("never"));
        assert_eq!(setup.option("access.unknown_users"), None);
        assert_eq!(setup.option("access.no_match"), Some("deny"));
        assert_eq!(rules, "deny All # $SYS/#\n");
        assert_eq!(report.matches("its value is neither").count(), 2, "{report}");
        let (_, setup, _) = imported("auth { allow_anonymous = on }");
        assert_eq!(setup.option("access.anonymous"), Some("always"));
    }

    #[test]
    fn defaults_that_open_the_server_are_reported() {
        for auth in ["", "auth {}", "auth { password { ann = hush } }"] {
            let (rules, setup, report) = imported(auth);
            assert_eq!(setup.option("access.anonymous"), Some("always"), "{auth}");
            assert_eq!(
                (rules.as_str(), setup.option("access.no_match")),
                ("", Some("allow")),
                "{auth}"
            );
            for part in ["auth.allow_anonymous", "auth.no_match", ALL_CLIENTS, ALL_TOPICS_ALLOWED] {
                assert!(report.contains(part), "{part}\n{report}");
            }
        }
        let (_, _, report) = imported("auth { allow_anonymous = true, no_match = allow }");
        assert!(
            !report.contains(ALL_CLIENTS) && !report.contains(ALL_TOPICS_ALLOWED),
            "{report}"
        );
        let (_, setup, report) = imported(r#"auth { http_auth { auth_req { url = "http://a" } } }"#);
        assert_eq!(setup.option("access.anonymous"), Some("never"));
        assert!(!report.contains(ALL_CLIENTS), "{report}");
    }

    #[test]
    fn parts_that_cannot_be_read_allow_nothing() {
        for (rule, rules) in [
            (r#"{"permit": "allow", "and": ["x"], "topics": ["a"]}"#, ""),
            (r#"{"permit": "allow", "and": [], "topics": ["a"]}"#, ""),
            (r#"{"permit": "allow", "or": [], "topics": ["a"]}"#, ""),
            (r#"{"permit": "allow", "topics": ["a/%c", "eq b"]}"#, ""),
            (r#"{"permit": "allow", "topics": ["a", "b/#/c"]}"#, ""),
            (r#"{"permit": "deny", "and": [], "topics": ["a"]}"#, "deny All a\n"),
            (
                r#"{"permit": "deny", "topics": ["a/%c", "$SYS/%u"]}"#,
                "deny All a/# $SYS/#\n",
            ),
        ] {
            let (found, _, report) = imported(&format!("auth {{ acl {{ rules = [{rule}] }} }}"));
            assert_eq!(found, rules, "{rule}\n{report}");
        }
        let (rules, setup, report) = imported("auth { acl = deny }");
        assert_eq!(rules, "deny All # $SYS/#\n", "{report}");
        assert_eq!(setup.option("access.no_match"), Some("deny"));
    }

    #[test]
    fn report_says_how_to_open_what_is_closed() {
        let (rules, setup, report) = imported(
            r##"auth { http_auth { acl_req { url = "http://a" } },
                acl { rules = [{"permit": "allow", "topics": ["a"]}, {"permit": "deny", "topics": ["a/#/b"]}] } }"##,
        );
        assert_eq!(
            (rules.as_str(), setup.option("access.no_match")),
            ("deny All # $SYS/#\n", Some("deny"))
        );
        for part in [
            "which could deny it; to open it, add it to access.rules",
            "to open them, add its counterpart and them to access.rules",
            "to open access, add them to access.rules",
        ] {
            assert!(report.contains(part), "{part}\n{report}");
        }
    }

    #[test]
    fn denials_of_names_that_are_not_verified_apply_to_all_clients() {
        let rules = r##"acl { rules = [
            {"permit": "deny", "username": "guest", "topics": ["a"]}
            {"permit": "deny", "username": "ann", "topics": ["b"]}
            {"permit": "deny", "topics": ["c/${username}/#"]}
            {"permit": "allow", "username": "guest", "topics": ["d"]}
            {"permit": "allow", "username": "ann", "topics": ["e/${username}"]}
        ] }"##;
        let auth = |anonymous: &str| {
            imported(&format!(
                "auth {{ allow_anonymous = {anonymous}, password {{ ann = hush }}, {rules} }}"
            ))
        };
        let (rules, _, report) = auth("true");
        let expected = "deny All a\ndeny users=ann All b\ndeny All c/#\nallow users=ann All e/${username}\n";
        assert_eq!(rules, expected, "{report}");
        for item in ["rules[1].username", "rules[3].topics[1]", "rules[4].username"] {
            let mut rows = report.lines().filter(|row| row.contains(NOT_VERIFIED));
            assert!(rows.any(|row| row.contains(item)), "{item}\n{report}");
        }
        let (rules, _, report) = auth("false");
        assert!(rules.starts_with("deny users=guest All a\n"), "{rules}");
        assert!(!report.contains(NOT_VERIFIED), "{report}");
    }

    #[test]
    fn users_that_a_server_could_reject_are_left_out() {
        let auth =
            r#"auth { allow_anonymous = true, password { c = "hush" }, http_auth { auth_req { url = "http://a" } } }"#;
        let (_, setup, report) = imported(auth);
        assert!(setup.users().is_empty(), "{report}");
        assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
        assert!(report.contains(USER_LEFT_OUT), "{report}");
    }

    #[test]
    fn user_without_a_password_is_left_out() {
        let (_, setup, report) = imported(r#"auth { password { a = "", b = [], c = "hush" } }"#);
        let verifies = |name, text: &[u8]| setup.verifies(name, &Password::new(text.to_vec()));
        assert!(
            verifies("c", b"hush") && !verifies("a", b"") && !verifies("b", b""),
            "{report}"
        );
        assert_eq!(
            report.matches("the password is empty or cannot be read").count(),
            2,
            "{report}"
        );
    }
}
