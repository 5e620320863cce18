//! `dynamic-security.json` of Mosquitto's plugin: users and their access.
//!
//! For a client, Mosquitto asks the roles of the client and then those of its groups, each by priority, and the access
//! lists of a role by priority. Each client gets rules in this order here. Without a match, `defaultACLAccess` decides.
//!
//! tidewire has no rule for the delivery of messages. A rule that denies deliveries denies the subscription. It comes
//! before all rules for subscriptions, because only then deliveries of a wider subscription are filtered. If deliveries
//! are denied by default, a subscription is allowed only with an access list that allows its deliveries.
//!
//! No rule can deny all filters with wildcards. A client with a role that forbids them gets only rules that allow
//! subscriptions to single topics.
//!
//! A client is imported with all of its rules, or not at all.

use std::collections::BTreeMap;
use std::path::Path;

use auth::{AccessAction, AccessRule, PasswordHash, Permission};
use mqtt::filter_covers;
use serde::Deserialize;

use crate::import::access::ALL_TOPICS;
use crate::import::report::{Outcome, Report};
use crate::import::setup::Setup;
use crate::import::{CONFIG_BYTES_MAX, read_bounded};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct File {
    #[serde(rename = "defaultACLAccess")]
    default_access: DefaultAccess,
    clients: Vec<Client>,
    groups: Vec<Group>,
    roles: Vec<Role>,
    anonymous_group: Option<String>,
}

/// As in Mosquitto, a missing value is `false`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DefaultAccess {
    publish_client_send: bool,
    publish_client_receive: bool,
    subscribe: bool,
}

#[derive(Deserialize)]
struct Client {
    username: String,
    #[serde(default)]
    clientid: Option<String>,
    #[serde(default)]
    disabled: bool,
    #[serde(default)]
    encoded_password: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    salt: Option<String>,
    #[serde(default)]
    iterations: Option<i64>,
    #[serde(default)]
    roles: Vec<RoleName>,
}

#[derive(Deserialize)]
struct RoleName {
    rolename: String,
    #[serde(default = "lowest")]
    priority: i64,
}

#[derive(Deserialize)]
struct Group {
    groupname: String,
    #[serde(default)]
    roles: Vec<RoleName>,
    #[serde(default)]
    clients: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    username: String,
    #[serde(default = "lowest")]
    priority: i64,
}

#[derive(Deserialize)]
struct Role {
    rolename: String,
    #[serde(default)]
    acls: Vec<Access>,
    #[serde(default = "yes", rename = "allowwildcardsubs")]
    allows_wildcards: bool,
}

#[derive(Deserialize)]
struct Access {
    acltype: String,
    topic: String,
    #[serde(default = "lowest")]
    priority: i64,
    #[serde(default)]
    allow: bool,
}

fn lowest() -> i64 {
    -1
}

fn yes() -> bool {
    true
}

/// Imports the file. `client_ids` is the pattern of the ids that clients may have besides the id of a client in the
/// file. Returns whether there are rules for client ids then.
pub fn import(
    path: &Path,
    report: &Report,
    is_anonymous: bool,
    client_ids: Option<&str>,
    setup: &mut Setup,
) -> Result<bool, String> {
    let bytes = read_bounded(path, CONFIG_BYTES_MAX)?;
    // The error of serde_json names line and column, not the text.
    let file: File = serde_json::from_slice(&bytes).map_err(|error| match error.is_data() {
        true => format!("{}:{}: unexpected contents", path.display(), error.line()),
        false => format!("{}: {error}", path.display()),
    })?;
    let name = path
        .file_name()
        .map_or_else(|| "dynamic-security.json".into(), |name| name.to_string_lossy());
    let import = DynamicSecurity {
        name: &name,
        roles: file.roles.iter().map(|role| (role.rolename.as_str(), role)).collect(),
        file: &file,
        client_ids,
        report,
    };
    let mut is_bound = false;
    for client in &file.clients {
        let item = format!("client {}", client.username);
        let outcome = import.client(client, setup);
        is_bound |= client.client_id().is_some() && !matches!(outcome, Outcome::NotSupported { .. });
        report.add(&name, 0, &item, outcome);
    }
    let in_file = |error: String| format!("{}: {error}", path.display());
    if is_bound {
        // For clients without an id in the file.
        let pattern = client_ids.unwrap_or("*");
        setup
            .add_rule(connect_rule(Permission::Allow, None, pattern))
            .map_err(in_file)?;
    }
    if let Some(group) = file.anonymous_group.as_deref().filter(|_| is_anonymous) {
        let roles = file
            .groups
            .iter()
            .find(|other| other.groupname == group)
            .map(|group| group.roles.as_slice());
        let in_group = |error: String| in_file(format!("anonymous group {group}: {error}"));
        let (rules, changes) = import
            .rules(None, &sorted(roles.unwrap_or_default()))
            .map_err(in_group)?;
        setup.add_rules(rules).map_err(in_group)?;
        import.note(&format!("anonymous group {group}"), changes);
    }
    import.defaults(setup).map_err(in_file)?;
    for group in &file.groups {
        import.note(&format!("group {}", group.groupname), Vec::new());
    }
    for role in &file.roles {
        import.role(role);
    }
    Ok(is_bound)
}

struct DynamicSecurity<'a> {
    name: &'a str,
    file: &'a File,
    roles: BTreeMap<&'a str, &'a Role>,
    client_ids: Option<&'a str>,
    report: &'a Report,
}

fn sorted(roles: &[RoleName]) -> Vec<&str> {
    let mut roles: Vec<&RoleName> = roles.iter().collect();
    roles.sort_by_key(|role| std::cmp::Reverse(role.priority));
    roles.iter().map(|role| role.rolename.as_str()).collect()
}

impl Client {
    /// Returns the only client id that the client may have.
    fn client_id(&self) -> Option<&str> {
        self.clientid.as_deref().filter(|id| !id.is_empty())
    }
}

pub fn connect_rule(permission: Permission, user: Option<&str>, client_id: &str) -> AccessRule {
    AccessRule {
        permission,
        action: AccessAction::Connect,
        users: user.map(|user| vec![user.to_owned()]),
        clients: Some(vec![client_id.to_owned()]),
        ..AccessRule::default()
    }
}

/// Returns whether a client id is more than a text in a rule.
pub fn has_special_meaning(client_id: &str) -> bool {
    ["*", "%u", "%c", "${"]
        .iter()
        .any(|special| client_id.contains(special))
}

/// Returns whether a topic is a text in Mosquitto and more than that in a rule. `%c` and `%u` mean the same in both.
fn has_other_meaning(topic: &str) -> bool {
    topic.starts_with("eq ") || topic.contains("${")
}

/// Returns the rules that bind a client id to a user. The id must match the pattern.
fn bind(user: &str, client_id: &str, pattern: Option<&str>) -> Result<Vec<AccessRule>, String> {
    if has_special_meaning(client_id) {
        return Err("its client id has a special meaning in access rules".to_owned());
    }
    let is_match = match pattern.map(|pattern| pattern.strip_suffix('*')) {
        None => true,
        Some(Some(prefix)) => client_id.starts_with(prefix),
        // The pattern is `%u`.
        Some(None) => client_id == user,
    };
    if !is_match {
        return Err("its client id contradicts clientid_prefixes or use_username_as_clientid".to_owned());
    }
    Ok(vec![
        connect_rule(Permission::Allow, Some(user), client_id),
        connect_rule(Permission::Deny, Some(user), "*"),
    ])
}

impl DynamicSecurity<'_> {
    fn note(&self, item: &str, mut changes: Vec<String>) {
        let to = "access.rules".to_owned();
        changes.sort();
        changes.dedup();
        let outcome = match changes.is_empty() {
            true => Outcome::Imported(to),
            false => Outcome::Changed {
                to,
                because: changes.join("; "),
            },
        };
        self.report.add(self.name, 0, item, outcome);
    }

    fn client(&self, client: &Client, setup: &mut Setup) -> Outcome {
        match self.user(client, setup) {
            Ok(changes) if changes.is_empty() => Outcome::Imported("passwords, access.rules".to_owned()),
            Ok(mut changes) => {
                changes.sort();
                changes.dedup();
                Outcome::Changed {
                    to: "passwords, access.rules".to_owned(),
                    because: changes.join("; "),
                }
            }
            Err(because) => Outcome::NotSupported { because },
        }
    }

    fn user(&self, client: &Client, setup: &mut Setup) -> Result<Vec<String>, String> {
        if client.disabled {
            return Err("the client is disabled".to_owned());
        }
        let parts = (&client.iterations, &client.salt, &client.password);
        let text = match (&client.encoded_password, parts) {
            (Some(encoded), _) => encoded.clone(),
            (None, (Some(iterations), Some(salt), Some(hash))) => format!("$7${iterations}${salt}${hash}"),
            _ => return Err("it has no password".to_owned()),
        };
        let hash = PasswordHash::parse(&text).map_err(|error| error.to_string())?;
        let mut roles = sorted(&client.roles);
        let mut groups: Vec<(i64, &Group)> = Vec::new();
        for group in &self.file.groups {
            let member = group.clients.iter().find(|member| member.username == client.username);
            groups.extend(member.map(|member| (member.priority, group)));
        }
        groups.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        for (_, group) in groups {
            roles.extend(sorted(&group.roles));
        }
        let mut rules = match client.client_id() {
            Some(id) => bind(&client.username, id, self.client_ids)?,
            None => Vec::new(),
        };
        let (access, changes) = self.rules(Some(&client.username), &roles)?;
        rules.extend(access);
        setup.add_user_with_rules(&client.username, hash, rules)?;
        Ok(changes)
    }

    /// Returns the rules of roles for a user, or for clients without a user name, and what changes.
    fn rules(&self, user: Option<&str>, roles: &[&str]) -> Result<(Vec<AccessRule>, Vec<String>), String> {
        let roles: Vec<&Role> = roles.iter().filter_map(|name| self.roles.get(name).copied()).collect();
        let rule = |permission, action, topic: &str| AccessRule {
            permission,
            action,
            users: user.map(|user| vec![user.to_owned()]),
            anonymous: user.is_none().then_some(true),
            topics: vec![topic.to_owned()],
            ..AccessRule::default()
        };
        let (mut rules, mut changes) = (Vec::new(), Vec::new());
        let denied = |acl: &&Access| acl.acltype == "publishClientReceive" && !acl.allow;
        for acl in roles.iter().flat_map(|role| &role.acls).filter(denied) {
            changes.push(format!("messages of {} are denied by its subscription", acl.topic));
            rules.push(rule(Permission::Deny, AccessAction::Subscribe, &acl.topic));
        }
        let without_wildcards = roles.iter().find(|role| !role.allows_wildcards);
        for role in &roles {
            let mut acls: Vec<&Access> = role.acls.iter().collect();
            // Literal subscriptions come before patterns.
            acls.sort_by_key(|acl| (acl.acltype != "subscribeLiteral", std::cmp::Reverse(acl.priority)));
            for acl in acls {
                let permission = if acl.allow { Permission::Allow } else { Permission::Deny };
                let topic = &acl.topic;
                if acl.acltype != "subscribeLiteral" && has_other_meaning(topic) {
                    return Err(format!(
                        "the topic {topic} of the role {} has another meaning in access rules",
                        role.rolename
                    ));
                }
                match (acl.acltype.as_str(), without_wildcards) {
                    ("publishClientSend", _) => rules.push(rule(permission, AccessAction::Publish, topic)),
                    ("subscribePattern" | "subscribeLiteral", _) if acl.allow && !self.can_receive(&roles, topic) => {
                        changes.push(format!("no subscription to {topic}, because its messages are denied"));
                    }
                    ("subscribePattern" | "subscribeLiteral", Some(role))
                        if acl.allow && topic.contains(['+', '#']) =>
                    {
                        let name = &role.rolename;
                        changes.push(format!(
                            "no subscription to {topic}, because the role {name} allows no wildcards in subscriptions"
                        ));
                    }
                    ("subscribePattern", _) => rules.push(rule(permission, AccessAction::Subscribe, topic)),
                    ("subscribeLiteral", _) => {
                        rules.push(rule(permission, AccessAction::Subscribe, &format!("eq {topic}")));
                    }
                    // A denial is a rule already. Deliveries are allowed with the subscription.
                    ("publishClientReceive", _) => {}
                    ("unsubscribeLiteral" | "unsubscribePattern", _) if acl.allow => {}
                    ("unsubscribeLiteral" | "unsubscribePattern", _) => {
                        changes.push("clients may always unsubscribe".to_owned());
                    }
                    (other, _) if acl.allow => changes.push(format!("the access list {other} is unknown")),
                    (other, _) => {
                        let name = &role.rolename;
                        return Err(format!(
                            "the role {name} denies something with an unknown access list, {other}"
                        ));
                    }
                }
            }
        }
        // Otherwise the default would allow subscriptions with wildcards.
        if let Some(role) = without_wildcards.filter(|_| self.subscribes_by_default()) {
            changes.push(format!(
                "subscriptions need a rule, because the role {} allows no wildcards in subscriptions",
                role.rolename
            ));
            for topic in ALL_TOPICS {
                rules.push(rule(Permission::Deny, AccessAction::Subscribe, topic));
            }
        }
        Ok((rules, changes))
    }

    fn subscribes_by_default(&self) -> bool {
        self.file.default_access.subscribe && self.file.default_access.publish_client_receive
    }

    fn can_receive(&self, roles: &[&Role], topic: &str) -> bool {
        let acls = roles.iter().flat_map(|role| &role.acls);
        let mut receiving = acls.filter(|acl| acl.acltype == "publishClientReceive" && acl.allow);
        self.file.default_access.publish_client_receive || receiving.any(|acl| filter_covers(&acl.topic, topic))
    }

    fn defaults(&self, setup: &mut Setup) -> Result<(), String> {
        let access = &self.file.default_access;
        let allows_subscribing = self.subscribes_by_default();
        for (action, is_allowed) in [
            (AccessAction::Publish, access.publish_client_send),
            (AccessAction::Subscribe, allows_subscribing),
        ] {
            if is_allowed {
                setup.add_rule(AccessRule::allow(action, &ALL_TOPICS))?;
            } else {
                setup.add_rule(AccessRule::deny(action, &ALL_TOPICS))?;
            }
        }
        setup.set("access.no_match", "defaultACLAccess", "deny");
        let changes = match access.subscribe == allows_subscribing {
            true => Vec::new(),
            false => vec!["subscriptions are denied by default, because their messages are".to_owned()],
        };
        self.note("defaultACLAccess", changes);
        Ok(())
    }

    fn role(&self, role: &Role) {
        let users = self.file.clients.iter().flat_map(|client| &client.roles);
        let groups = self.file.groups.iter().flat_map(|group| &group.roles);
        let is_used = users.chain(groups).any(|used| used.rolename == role.rolename);
        let item = format!("role {}", role.rolename);
        match is_used {
            true => self.note(&item, Vec::new()),
            false => {
                let because = "no client and no group has the role".to_owned();
                self.report.add(self.name, 0, &item, Outcome::NotSupported { because });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rules, and the report.
    fn imported(file: &str, is_anonymous: bool) -> (String, String) {
        let directory = std::env::temp_dir().join(format!("tidewire-dynsec-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let thread = std::thread::current();
        let path = directory.join(thread.name().unwrap_or("test").replace("::", "-"));
        std::fs::write(&path, file).expect("written");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let result = import(&path, &report, is_anonymous, None, &mut setup);
        std::fs::remove_file(&path).expect("removed");
        result.expect("imported");
        (setup.rules_text(), report.text("title"))
    }

    /// Returns a file with one client, its roles and the default for subscriptions.
    fn file(client: &str, roles: &str, subscribe: bool) -> String {
        // The password is `hush-alice`.
        let hash = "cuiBwzEUrqnNNqnPt6OnTCD3cVMavv6bibuGcDy8C51rJRy6/1yR/Yv4M0e6QXLO/yvu73ne8sCiRLz9v5H5rg==";
        format!(
            r#"{{"defaultACLAccess": {{"subscribe": {subscribe}, "publishClientReceive": true}},
                "clients": [{{"username": "ann", "password": "{hash}", "salt": "c2FsdC1vZi0xMi1i", "iterations": 101,
                             {client}}}],
                "roles": [{roles}]}}"#
        )
    }

    const TWO_ROLES: &str = r#""roles": [{"rolename": "first", "priority": 2}, {"rolename": "second"}]"#;

    #[test]
    fn denied_deliveries_come_before_subscriptions_of_all_roles() {
        let roles = r##"{"rolename": "first", "acls": [
                {"acltype": "subscribePattern", "topic": "#", "priority": 9, "allow": true}]},
            {"rolename": "second", "acls": [
                {"acltype": "publishClientReceive", "topic": "private/#", "allow": false}]}"##;
        let (rules, report) = imported(&file(TWO_ROLES, roles, false), false);
        let expected = "deny users=ann Subscribe private/#\nallow users=ann Subscribe #\n";
        assert!(rules.starts_with(expected), "{rules}");
        assert!(report.contains("messages of private/# are denied"), "{report}");
    }

    #[test]
    fn deliveries_are_denied_by_default() {
        for access in ["", r#""defaultACLAccess": {"subscribe": true}"#] {
            let (rules, _) = imported(&format!("{{{access}}}"), false);
            assert_eq!(rules, "deny Publish # $SYS/#\ndeny Subscribe # $SYS/#\n", "{access}");
        }
    }

    #[test]
    fn client_is_left_out_with_all_rules_if_one_is_invalid() {
        let invalid = r##"{"rolename": "first", "acls": [
                {"acltype": "publishClientSend", "topic": "a", "priority": 9, "allow": true},
                {"acltype": "publishClientSend", "topic": "b/#/c", "allow": false}]}"##;
        let unknown = r##"{"rolename": "first", "acls": [
                {"acltype": "publishClientSend", "topic": "a", "priority": 9, "allow": true},
                {"acltype": "publishEverything", "topic": "a", "allow": false}]}"##;
        for roles in [invalid, unknown] {
            let (rules, report) = imported(&file(TWO_ROLES, roles, false), false);
            assert!(!rules.contains("ann"), "{rules}");
            assert!(
                report.contains("client ann  ") && report.contains("not supported  because"),
                "{report}"
            );
        }
        let (rules, report) = imported(&file(r#""clientid": "ann*""#, "", false), false);
        assert!(!rules.contains("ann") && !rules.contains("Connect"), "{rules}");
        assert!(report.contains("its client id has a special meaning"), "{report}");
    }

    #[test]
    fn role_without_wildcards_allows_single_topics_only() {
        let roles = r##"{"rolename": "first", "allowwildcardsubs": false, "acls": [
                {"acltype": "subscribePattern", "topic": "a/#", "allow": true},
                {"acltype": "subscribePattern", "topic": "b", "allow": true}]},
            {"rolename": "second", "acls": [
                {"acltype": "subscribeLiteral", "topic": "+", "allow": true},
                {"acltype": "subscribePattern", "topic": "c/#", "allow": false}]}"##;
        let (rules, report) = imported(&file(TWO_ROLES, roles, true), false);
        let expected = "allow users=ann Subscribe b\ndeny users=ann Subscribe c/#\n\
                        deny users=ann Subscribe #\ndeny users=ann Subscribe $SYS/#\n";
        assert!(rules.starts_with(expected), "{rules}");
        assert!(
            report.contains("no subscription to a/#, because the role first allows no wildcards"),
            "{report}"
        );
        let (rules, _) = imported(&file(TWO_ROLES, roles, false), false);
        assert!(!rules.contains("users=ann Subscribe #"), "{rules}");
    }
}
