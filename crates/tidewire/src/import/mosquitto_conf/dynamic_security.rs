//! `dynamic-security.json` of Mosquitto's plugin: users and their access.
//!
//! For a client, Mosquitto asks the roles of the client and then those of its groups, each by priority, and the access
//! lists of a role by priority. Each client gets rules in this order here. Without a match, `defaultACLAccess` decides.
//!
//! tidewire has no rule for the delivery of messages. A rule that denies deliveries denies the subscription, and if
//! deliveries are denied by default, a subscription is allowed only with an access list that allows its deliveries.

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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DefaultAccess {
    publish_client_send: bool,
    publish_client_receive: bool,
    subscribe: bool,
}

impl Default for DefaultAccess {
    fn default() -> DefaultAccess {
        DefaultAccess {
            publish_client_send: false,
            publish_client_receive: true,
            subscribe: false,
        }
    }
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

pub fn import(path: &Path, report: &Report, is_anonymous: bool, setup: &mut Setup) -> Result<(), String> {
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
        report,
    };
    import.connect_rules(setup)?;
    for client in &file.clients {
        let item = format!("client {}", client.username);
        let outcome = import.client(client, setup);
        report.add(&name, 0, &item, outcome);
    }
    if let Some(group) = file.anonymous_group.as_deref().filter(|_| is_anonymous) {
        let roles = file
            .groups
            .iter()
            .find(|other| other.groupname == group)
            .map(|group| group.roles.as_slice());
        let changes = import.rules(None, &sorted(roles.unwrap_or_default()), setup)?;
        import.note(&format!("anonymous group {group}"), changes);
    }
    import.defaults(setup)?;
    for group in &file.groups {
        import.note(&format!("group {}", group.groupname), Vec::new());
    }
    for role in &file.roles {
        import.role(role);
    }
    Ok(())
}

struct DynamicSecurity<'a> {
    name: &'a str,
    file: &'a File,
    roles: BTreeMap<&'a str, &'a Role>,
    report: &'a Report,
}

fn sorted(roles: &[RoleName]) -> Vec<&str> {
    let mut roles: Vec<&RoleName> = roles.iter().collect();
    roles.sort_by_key(|role| std::cmp::Reverse(role.priority));
    roles.iter().map(|role| role.rolename.as_str()).collect()
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

    /// Binds client ids to users. Without such a client, every client id is allowed.
    fn connect_rules(&self, setup: &mut Setup) -> Result<(), String> {
        let bound = self
            .file
            .clients
            .iter()
            .filter_map(|client| Some((client, client.clientid.as_deref()?)));
        let mut is_bound = false;
        for (client, id) in bound.filter(|(client, id)| !client.disabled && !id.is_empty()) {
            is_bound = true;
            for (permission, id) in [(Permission::Allow, id), (Permission::Deny, "*")] {
                setup.add_rule(AccessRule {
                    permission,
                    action: AccessAction::Connect,
                    users: Some(vec![client.username.clone()]),
                    clients: Some(vec![id.to_owned()]),
                    ..AccessRule::default()
                })?;
            }
        }
        if is_bound {
            setup.add_rule(AccessRule {
                permission: Permission::Allow,
                action: AccessAction::Connect,
                clients: Some(vec!["*".to_owned()]),
                ..AccessRule::default()
            })?;
        }
        Ok(())
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
        setup.add_user(&client.username, hash, false)?;
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
        self.rules(Some(&client.username), &roles, setup)
    }

    /// Adds the rules of roles for a user, or for clients without a user name. Returns the changes.
    fn rules(&self, user: Option<&str>, roles: &[&str], setup: &mut Setup) -> Result<Vec<String>, String> {
        let roles: Vec<&Role> = roles.iter().filter_map(|name| self.roles.get(name).copied()).collect();
        let receives = |topic: &str| self.can_receive(&roles, topic);
        let mut changes = Vec::new();
        for role in &roles {
            let mut acls: Vec<&Access> = role.acls.iter().collect();
            // Literal subscriptions come before patterns.
            acls.sort_by_key(|acl| (acl.acltype != "subscribeLiteral", std::cmp::Reverse(acl.priority)));
            if !role.allows_wildcards {
                changes.push("subscriptions with wildcards depend on the rules only".to_owned());
            }
            for acl in acls {
                let permission = if acl.allow { Permission::Allow } else { Permission::Deny };
                let (action, topic) = match acl.acltype.as_str() {
                    "publishClientSend" => (AccessAction::Publish, acl.topic.clone()),
                    "subscribePattern" | "subscribeLiteral" if acl.allow && !receives(&acl.topic) => {
                        changes.push(format!(
                            "no subscription to {}, because its messages are denied",
                            acl.topic
                        ));
                        continue;
                    }
                    "subscribePattern" => (AccessAction::Subscribe, acl.topic.clone()),
                    "subscribeLiteral" => (AccessAction::Subscribe, format!("eq {}", acl.topic)),
                    "publishClientReceive" if !acl.allow => {
                        changes.push(format!("messages of {} are denied by its subscription", acl.topic));
                        (AccessAction::Subscribe, acl.topic.clone())
                    }
                    "publishClientReceive" => continue,
                    "unsubscribeLiteral" | "unsubscribePattern" => {
                        if !acl.allow {
                            changes.push("clients may always unsubscribe".to_owned());
                        }
                        continue;
                    }
                    other => {
                        changes.push(format!("the access list {other} is unknown"));
                        continue;
                    }
                };
                let rule = AccessRule {
                    permission,
                    action,
                    users: user.map(|user| vec![user.to_owned()]),
                    anonymous: user.is_none().then_some(true),
                    topics: vec![topic],
                    ..AccessRule::default()
                };
                setup.add_rule(rule)?;
            }
        }
        Ok(changes)
    }

    fn can_receive(&self, roles: &[&Role], topic: &str) -> bool {
        let acls = roles.iter().flat_map(|role| &role.acls);
        let mut receiving = acls.filter(|acl| acl.acltype == "publishClientReceive" && acl.allow);
        self.file.default_access.publish_client_receive || receiving.any(|acl| filter_covers(&acl.topic, topic))
    }

    fn defaults(&self, setup: &mut Setup) -> Result<(), String> {
        let access = &self.file.default_access;
        let allows_subscribing = access.subscribe && access.publish_client_receive;
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
