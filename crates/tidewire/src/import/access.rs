//! Access rules of other brokers as access rules of tidewire.
//!
//! A part that cannot be translated must not widen access: an allow rule with it is left out, and a deny rule with it
//! applies to more clients or topics.

use auth::{AccessAction, AccessRule, Permission, Users};

use super::setup::Setup;

/// Maximum number of rules that one rule with alternatives becomes.
const ALTERNATIVES_MAX: usize = 100;

/// All topics, those of the server included.
pub const ALL_TOPICS: [&str; 2] = ["#", "$SYS/#"];

/// Prefix of a topic without placeholders and wildcards.
pub const LITERAL: &str = "eq ";
/// Placeholder of the user name in topics.
const USER_NAME: &str = "${username}";

/// Which clients a rule applies to: any of these conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients(Vec<ClientCondition>);

/// All of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClientCondition {
    users: Option<Vec<String>>,
    clients: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
}

impl Clients {
    pub fn all() -> Clients {
        Clients(vec![ClientCondition::default()])
    }

    pub fn user(name: &str) -> Clients {
        Clients(vec![ClientCondition {
            users: Some(vec![name.to_owned()]),
            ..ClientCondition::default()
        }])
    }

    pub fn client(id: &str) -> Clients {
        Clients(vec![ClientCondition {
            clients: Some(vec![id.to_owned()]),
            ..ClientCondition::default()
        }])
    }

    pub fn addresses(addresses: Vec<String>) -> Clients {
        Clients(vec![ClientCondition {
            addresses: Some(addresses),
            ..ClientCondition::default()
        }])
    }

    pub fn or(mut self, other: Clients) -> Result<Clients, String> {
        self.0.extend(other.0);
        match self.0.len() > ALTERNATIVES_MAX {
            true => Err(format!("it has more than {ALTERNATIVES_MAX} alternatives")),
            false => Ok(self),
        }
    }

    /// Returns whether the conditions contain user names other than these.
    fn have_other_names(&self, known: Option<&Users>) -> bool {
        let mut names = self.0.iter().flat_map(|condition| condition.users.iter().flatten());
        names.any(|name| !known.is_some_and(|known| known.contains(name)))
    }

    pub fn none() -> Clients {
        Clients(Vec::new())
    }

    pub fn and(self, other: &Clients) -> Result<Clients, String> {
        let mut result = Clients::none();
        for one in &self.0 {
            for two in &other.0 {
                if let Some(both) = one.and(two)? {
                    result = result.or(Clients(vec![both]))?;
                }
            }
        }
        Ok(result)
    }
}

impl ClientCondition {
    /// `None`: no client can meet both.
    fn and(&self, other: &ClientCondition) -> Result<Option<ClientCondition>, String> {
        let names = |one: &Option<Vec<String>>, two: &Option<Vec<String>>| match (one, two) {
            (Some(one), Some(two)) => Some(one.iter().filter(|name| two.contains(name)).cloned().collect()),
            (one, two) => one.clone().or_else(|| two.clone()),
        };
        if self.addresses.is_some() && other.addresses.is_some() {
            return Err("it combines two address conditions".to_owned());
        }
        let both = ClientCondition {
            users: names(&self.users, &other.users),
            clients: names(&self.clients, &other.clients),
            addresses: self.addresses.clone().or_else(|| other.addresses.clone()),
        };
        let is_empty = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
        Ok((!is_empty(&both.users) && !is_empty(&both.clients)).then_some(both))
    }
}

/// The operations that a rule allows or denies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketCondition {
    pub action: AccessAction,
    pub qos: Option<Vec<u8>>,
    pub retain: Option<bool>,
}

impl PacketCondition {
    pub fn of(action: AccessAction) -> PacketCondition {
        PacketCondition {
            action,
            ..PacketCondition::default()
        }
    }
}

/// A rule of another broker in parts, each of which may not be translatable.
pub struct ForeignRule {
    pub permission: Permission,
    pub clients: Result<Clients, String>,
    pub packets: Result<Vec<PacketCondition>, String>,
    pub topics: Vec<Result<String, ForeignTopic>>,
}

/// A topic that cannot be translated.
pub struct ForeignTopic {
    /// A filter that matches more.
    pub wider: String,
    pub because: String,
}

impl ForeignRule {
    /// Adds the rule to the setup. `Ok` has the changes, if any; `Err` why the rule is left out.
    pub fn add(self, setup: &mut Setup) -> Result<Option<String>, String> {
        let is_deny = self.permission == Permission::Deny;
        let mut changes = Vec::new();
        let clients = match self.clients {
            Ok(clients) => clients,
            Err(because) if is_deny => {
                changes.push(format!("it denies all clients, because {because}"));
                Clients::all()
            }
            Err(because) => return Err(because),
        };
        let packets = match self.packets {
            Ok(packets) => packets,
            Err(because) if is_deny => {
                changes.push(format!("it denies publishing and subscribing, because {because}"));
                vec![PacketCondition::default()]
            }
            Err(because) => return Err(because),
        };
        let mut topics = Vec::new();
        for topic in self.topics {
            match topic {
                Ok(topic) => topics.push(topic),
                Err(ForeignTopic { wider, because }) if is_deny => {
                    changes.push(format!("it denies {wider}, because {because}"));
                    topics.push(wider);
                }
                Err(ForeignTopic { because, .. }) => changes.push(format!("a topic is left out, because {because}")),
            }
        }
        if topics.is_empty() {
            return Err(changes.pop().unwrap_or_else(|| "it has no topics".to_owned()));
        }
        setup.add_rules(rules(self.permission, &clients, &packets, &topics))?;
        Ok((!changes.is_empty()).then(|| changes.join("; ")))
    }
}

fn rules(permission: Permission, clients: &Clients, packets: &[PacketCondition], topics: &[String]) -> Vec<AccessRule> {
    let mut rules = Vec::new();
    for client in &clients.0 {
        for packet in packets {
            rules.push(AccessRule {
                permission,
                users: client.users.clone(),
                clients: client.clients.clone(),
                addresses: client.addresses.clone(),
                action: packet.action,
                qos: packet.qos.clone(),
                retain: packet.retain,
                topics: topics.to_vec(),
                ..AccessRule::default()
            });
        }
    }
    rules
}

/// Changes a rule that compares names of clients that are not verified. tidewire does not use such names, so that the
/// rule would apply to no client. `verified` has the users whose names are verified.
pub fn without_user_names(mut rule: ForeignRule, verified: Option<&Users>, because: &str) -> ForeignRule {
    let has_other_names = |clients: &Clients| clients.have_other_names(verified);
    if rule.clients.as_ref().is_ok_and(has_other_names) {
        rule.clients = Err(because.to_owned());
    }
    // The verified users have what such a rule allows.
    if rule.permission == Permission::Allow && verified.is_some() {
        return rule;
    }
    let topics = rule.topics.into_iter().map(|topic| {
        let topic = topic?;
        match topic.contains(USER_NAME) && !topic.starts_with(LITERAL) {
            true => Err(ForeignTopic {
                wider: wider(&topic, USER_NAME),
                because: because.to_owned(),
            }),
            false => Ok(topic),
        }
    });
    rule.topics = topics.collect();
    rule
}

/// Returns a filter that matches at least the topics of a filter with a placeholder that tidewire does not know.
pub fn wider(topic: &str, placeholder: &str) -> String {
    let before = topic.find(placeholder).map_or("", |at| &topic[..at]);
    match before.rfind('/') {
        Some(at) => format!("{}/#", &before[..at]),
        None => "#".to_owned(),
    }
}
