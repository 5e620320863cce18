//! One rule: as written, checked, and compiled.
//!
//! A written rule contains only text, so that all errors can be reported together, and so that it passes through TOML
//! and JSON unchanged:
//!
//! ```toml
//! [[rules]]
//! permission = "allow"
//! users = ["alice", "bob"]        # any of these; all lists of a rule must match
//! attributes = { role = ["admin"] }
//! groups = ["operators"]
//! addresses = ["10.0.0.0/8"]
//! action = "publish"
//! qos = [0, 1]
//! topics = ["devices/%c/#", "eq alarms/#"]
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mqtt::{FilterError, QoS};
use serde::{Deserialize, Serialize};

use super::Identity;
use super::cidr::{Cidr, CidrError};
use super::pattern::TopicPattern;
use super::session::{AccessEntry, PacketScope};

const TOPICS_MAX: usize = 1_000;
const NAMES_MAX: usize = 10_000;
/// Attributes of one rule. A client has no more.
const ATTRIBUTES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 65_535;
/// Bounds the memory of sessions: the value of a placeholder is copied into every rule that contains it.
const PLACEHOLDER_VALUE_BYTES_MAX: usize = 1024;
const FILTER_BYTES_MAX: usize = 65_535;
/// Topic of a rule for every topic, including those that begin with `$`. It is not a valid filter, because no filter
/// can express that.
pub(crate) const EVERY_TOPIC: &str = "$#";
/// Prefixes that the caller removes before a check.
const STRIPPED_PREFIXES: [&str; 4] = ["$share/", "$queue/", "$exclusive/", "$delayed/"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    Allow,
    #[default]
    Deny,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessAction {
    Publish,
    Subscribe,
    /// Publish and subscribe.
    #[default]
    All,
    /// Connect with a client id. The rule has no topics.
    Connect,
}

/// A rule as written. A missing list is no condition. An empty list is an error, because "no client" and "every client"
/// are easily confused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessRule {
    pub permission: Permission,
    /// User names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<String>>,
    /// Client ids. With `action = "connect"`, patterns: `%u` stands for the user name, a last `*` for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<String>>,
    /// Networks or addresses, `10.0.0.0/8`, `::1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<String>>,
    /// `true`: only clients without a user name. `false`: only clients with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<bool>,
    /// Attributes that an authentication provider has returned: the client must have each of these, with one of the
    /// values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, Vec<String>>>,
    /// Groups that an authentication provider has returned: the client must be a member of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Common names of client certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_names: Option<Vec<String>>,
    /// Subjects of client certificates, `CN=meter-17,O=Example`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_subjects: Option<Vec<String>>,
    pub action: AccessAction,
    /// Only messages with these QoS levels. Requires `action = "publish"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Vec<u8>>,
    /// Only messages with (`true`) or without (`false`) RETAIN. Requires `action = "publish"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
    /// Topic filters. `%c` or `${clientid}` stands for the client id, `%u` or `${username}` for the user name,
    /// `${client_attrs.NAME}` for an attribute of the client. After the prefix `eq `, the filter is literal: no
    /// placeholders, and wildcards match only a subscription to exactly this filter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
}

impl AccessRule {
    pub fn allow(action: AccessAction, topics: &[&str]) -> AccessRule {
        AccessRule::new(Permission::Allow, action, topics)
    }

    pub fn deny(action: AccessAction, topics: &[&str]) -> AccessRule {
        AccessRule::new(Permission::Deny, action, topics)
    }

    fn new(permission: Permission, action: AccessAction, topics: &[&str]) -> AccessRule {
        let topics = topics.iter().map(|topic| topic.to_string()).collect();
        AccessRule {
            permission,
            action,
            topics,
            ..AccessRule::default()
        }
    }
}

pub(super) struct CompiledRule {
    pub conditions: RuleConditions,
    scope: PacketScope,
    topics: Vec<RuleTopic>,
}

pub(super) struct RuleConditions {
    pub users: Option<NameSet>,
    pub clients: Option<NameSet>,
    addresses: Option<Box<[Cidr]>>,
    anonymous: Option<bool>,
    attributes: Box<[(Box<str>, NameSet)]>,
    groups: Option<NameSet>,
    certificate_names: Option<NameSet>,
    certificate_subjects: Option<NameSet>,
}

/// Sorted.
type NameSet = Box<[Box<str>]>;

enum RuleTopic {
    Fixed(TopicPattern),
    Template(Vec<RuleTopicPart>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleTopicPart {
    Text(Box<str>),
    ClientId,
    UserName,
    Attribute(Box<str>),
}

/// Begins a placeholder for an attribute, which ends with `}`.
const ATTRIBUTE_PREFIX: &str = "${client_attrs.";

const PLACEHOLDERS: [(&str, RuleTopicPart); 4] = [
    ("%c", RuleTopicPart::ClientId),
    ("${clientid}", RuleTopicPart::ClientId),
    ("%u", RuleTopicPart::UserName),
    ("${username}", RuleTopicPart::UserName),
];

impl CompiledRule {
    pub fn compile(rule: &AccessRule) -> Result<CompiledRule, Vec<AclErrorKind>> {
        let mut errors = Vec::new();
        let conditions = compile_conditions(rule, &mut errors);
        let scope = compile_scope(rule, &mut errors);
        let topics = compile_topics(&rule.topics, &mut errors);
        if errors.is_empty() {
            Ok(CompiledRule {
                conditions,
                scope,
                topics,
            })
        } else {
            Err(errors)
        }
    }

    pub fn has_placeholders(&self) -> bool {
        self.topics.iter().any(|topic| matches!(topic, RuleTopic::Template(_)))
    }

    /// Returns the entries of the rule for a session to which its conditions apply.
    pub fn resolve(&self, who: &Identity<'_>) -> impl Iterator<Item = AccessEntry> {
        self.topics.iter().filter_map(|topic| {
            let pattern = match topic {
                RuleTopic::Fixed(pattern) => pattern.clone(),
                RuleTopic::Template(parts) => fill_in(parts, who, self.scope.is_allow())?,
            };
            Some(AccessEntry {
                scope: self.scope,
                pattern,
            })
        })
    }
}

impl RuleConditions {
    pub fn are_met(&self, who: &Identity<'_>) -> bool {
        let is_listed = |list: &[Box<str>], name: &str| list.binary_search_by(|entry| (**entry).cmp(name)).is_ok();
        let is_met = |list: &Option<NameSet>, name: Option<&str>| {
            list.as_ref()
                .is_none_or(|list| name.is_some_and(|name| is_listed(list, name)))
        };
        let has = |(name, values): &(Box<str>, NameSet)| {
            who.attributes.get(name).is_some_and(|value| is_listed(values, value))
        };
        self.anonymous
            .is_none_or(|anonymous| anonymous == who.user_name.is_none())
            && is_met(&self.users, who.user_name)
            && is_met(&self.clients, Some(who.client_id))
            && self.attributes.iter().all(has)
            && self.groups.as_ref().is_none_or(|list| {
                let mut groups = who.attributes.groups().iter();
                groups.any(|group| is_listed(list, group))
            })
            && is_met(&self.certificate_names, who.certificate.common_name)
            && is_met(&self.certificate_subjects, who.certificate.subject)
            && self
                .addresses
                .as_ref()
                .is_none_or(|networks| networks.iter().any(|net| net.contains(who.address)))
    }
}

/// Fills in the placeholders. `None` if the rule does not apply to this client.
fn fill_in<'a>(parts: &'a [RuleTopicPart], who: &Identity<'a>, is_allow: bool) -> Option<TopicPattern> {
    let value_of = |part: &'a RuleTopicPart| match part {
        RuleTopicPart::Text(text) => Some(&**text),
        RuleTopicPart::ClientId => Some(who.client_id),
        RuleTopicPart::UserName => who.user_name,
        RuleTopicPart::Attribute(name) => who.attributes.get(name),
    };
    let values = parts.iter().map(value_of).collect::<Option<Vec<&str>>>()?;
    let mut filter = String::new();
    for (part, value) in parts.iter().zip(values) {
        if let RuleTopicPart::Text(text) = part {
            filter.push_str(text);
            continue;
        }
        if is_unsafe_value(value, filter.is_empty()) {
            return if is_allow {
                None
            } else {
                Some(match_all_from_last_level(filter))
            };
        }
        filter.push_str(value);
    }
    // No topic is longer, so the rule cannot match.
    (filter.len() <= FILTER_BYTES_MAX).then(|| TopicPattern::new(&filter))
}

/// Returns whether a value could match beyond its level: a wildcard, a level separator, or the start of a `$` topic.
fn is_unsafe_value(value: &str, is_at_start: bool) -> bool {
    !is_plain_level(value) || (is_at_start && value.starts_with('$'))
}

/// Returns whether a value can replace a placeholder in a topic: it stays in its level and has no wildcard.
pub fn is_plain_level(value: &str) -> bool {
    !value.is_empty() && value.len() <= PLACEHOLDER_VALUE_BYTES_MAX && !value.contains(['+', '#', '/', '\0'])
}

/// Covers every topic that the filter could match. `filter` is the part before the value.
fn match_all_from_last_level(filter: String) -> TopicPattern {
    match filter.rsplit_once('/') {
        Some((levels, _)) => TopicPattern::new(&format!("{levels}/#")),
        None => TopicPattern::match_all(),
    }
}

pub(super) fn compile_conditions(rule: &AccessRule, errors: &mut Vec<AclErrorKind>) -> RuleConditions {
    if rule.anonymous == Some(true) && rule.users.is_some() {
        errors.push(AclErrorKind::AnonymousUsers);
    }
    RuleConditions {
        users: rule.users.as_ref().map(|names| compile_names("users", names, errors)),
        clients: rule.clients.as_ref().map(|ids| compile_names("clients", ids, errors)),
        addresses: rule
            .addresses
            .as_ref()
            .map(|addresses| compile_addresses(addresses, errors)),
        anonymous: rule.anonymous,
        attributes: compile_attributes(rule, errors),
        groups: rule.groups.as_ref().map(|names| compile_names("groups", names, errors)),
        certificate_names: rule
            .certificate_names
            .as_ref()
            .map(|names| compile_names("certificate_names", names, errors)),
        certificate_subjects: rule
            .certificate_subjects
            .as_ref()
            .map(|names| compile_names("certificate_subjects", names, errors)),
    }
}

fn compile_attributes(rule: &AccessRule, errors: &mut Vec<AclErrorKind>) -> Box<[(Box<str>, NameSet)]> {
    let Some(attributes) = &rule.attributes else {
        return Box::default();
    };
    check_length("attributes", attributes.len(), ATTRIBUTES_MAX, errors);
    let compiled = attributes.iter().take(ATTRIBUTES_MAX);
    compiled
        .map(|(name, values)| (name.as_str().into(), compile_names("attributes", values, errors)))
        .collect()
}

fn compile_names(list: &'static str, names: &[String], errors: &mut Vec<AclErrorKind>) -> Box<[Box<str>]> {
    check_length(list, names.len(), NAMES_MAX, errors);
    if names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
        errors.push(AclErrorKind::NameTooLong { list });
    }
    let mut names: Vec<Box<str>> = names.iter().take(NAMES_MAX).map(|name| name.as_str().into()).collect();
    names.sort();
    names.dedup();
    names.into()
}

fn compile_addresses(addresses: &[String], errors: &mut Vec<AclErrorKind>) -> Box<[Cidr]> {
    check_length("addresses", addresses.len(), NAMES_MAX, errors);
    let mut networks = Vec::new();
    for text in addresses.iter().take(NAMES_MAX) {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(error) => errors.push(AclErrorKind::Address {
                text: text.clone(),
                error,
            }),
        }
    }
    networks.into()
}

fn check_length(list: &'static str, len: usize, max: usize, errors: &mut Vec<AclErrorKind>) {
    if len == 0 {
        errors.push(AclErrorKind::EmptyList { list });
    }
    if len > max {
        errors.push(AclErrorKind::ListTooLong { list, max });
    }
}

fn compile_scope(rule: &AccessRule, errors: &mut Vec<AclErrorKind>) -> PacketScope {
    if rule.action != AccessAction::Publish && (rule.qos.is_some() || rule.retain.is_some()) {
        errors.push(AclErrorKind::PublishCondition);
    }
    let stated = rule.qos.as_deref().unwrap_or_default();
    if rule.qos.is_some() {
        check_length("qos", stated.len(), 3, errors);
    }
    let qos: Vec<QoS> = stated.iter().filter_map(|&bits| QoS::from_bits(bits)).collect();
    if qos.len() != stated.len() {
        errors.push(AclErrorKind::QoS);
    }
    PacketScope::new(rule.permission, rule.action, &qos, rule.retain)
}

fn compile_topics(topics: &[String], errors: &mut Vec<AclErrorKind>) -> Vec<RuleTopic> {
    check_length("topics", topics.len(), TOPICS_MAX, errors);
    let mut compiled = Vec::new();
    for text in topics.iter().take(TOPICS_MAX) {
        match compile_topic(text) {
            Ok(topic) => compiled.push(topic),
            Err(error) => errors.push(AclErrorKind::Topic {
                text: shortened(text),
                error,
            }),
        }
    }
    compiled
}

fn compile_topic(text: &str) -> Result<RuleTopic, TopicRuleError> {
    if text == EVERY_TOPIC {
        return Ok(RuleTopic::Fixed(TopicPattern::match_all()));
    }
    if let Some(literal) = text.strip_prefix("eq ") {
        check_filter(literal)?;
        return Ok(RuleTopic::Fixed(TopicPattern::literal_filter(literal)));
    }
    let parts = parts(text);
    if let [] | [RuleTopicPart::Text(_)] = parts.as_slice() {
        check_filter(text)?;
        return Ok(RuleTopic::Fixed(TopicPattern::new(text)));
    }
    check_template(&parts)?;
    Ok(RuleTopic::Template(parts))
}

/// Checks the filter with an ordinary word in place of each placeholder.
fn check_template(parts: &[RuleTopicPart]) -> Result<(), TopicRuleError> {
    let word = |part: &RuleTopicPart| match part {
        RuleTopicPart::Text(text) => text.to_string(),
        RuleTopicPart::ClientId | RuleTopicPart::UserName | RuleTopicPart::Attribute(_) => "\u{1}".to_owned(),
    };
    let filter: String = parts.iter().map(word).collect();
    check_filter(&filter.replace('\u{1}', "x"))?;
    for (index, level) in filter.split('/').enumerate() {
        let placeholders = level.matches('\u{1}').count();
        // `%u-%c` would give user `a` with client id `b-c` the access of user `a-b` with client id `c`.
        if placeholders > 1 {
            return Err(TopicRuleError::TwoPlaceholders);
        }
        if placeholders == 1 && index == 0 && level.starts_with('$') {
            return Err(TopicRuleError::DollarPlaceholder);
        }
    }
    Ok(())
}

fn check_filter(filter: &str) -> Result<(), TopicRuleError> {
    if STRIPPED_PREFIXES.iter().any(|prefix| filter.starts_with(prefix)) {
        return Err(TopicRuleError::Prefixed);
    }
    mqtt::validate_filter(filter).map_err(TopicRuleError::Filter)
}

fn parts(text: &str) -> Vec<RuleTopicPart> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((range, part)) = first_placeholder(rest) {
        if range.start > 0 {
            parts.push(RuleTopicPart::Text(rest[..range.start].into()));
        }
        parts.push(part);
        rest = &rest[range.end..];
    }
    if !rest.is_empty() {
        parts.push(RuleTopicPart::Text(rest.into()));
    }
    parts
}

fn first_placeholder(text: &str) -> Option<(Range<usize>, RuleTopicPart)> {
    let found = PLACEHOLDERS.iter().filter_map(|(name, part)| {
        let start = text.find(name)?;
        Some((start..start + name.len(), part.clone()))
    });
    found.chain(first_attribute(text)).min_by_key(|(range, _)| range.start)
}

fn first_attribute(text: &str) -> Option<(Range<usize>, RuleTopicPart)> {
    let start = text.find(ATTRIBUTE_PREFIX)?;
    let name = &text[start + ATTRIBUTE_PREFIX.len()..];
    let name = &name[..name.find('}')?];
    let end = start + ATTRIBUTE_PREFIX.len() + name.len() + 1;
    Some((start..end, RuleTopicPart::Attribute(name.into())))
}

/// Returns whether a topic would be interpreted as more than its text.
pub(super) fn has_special_meaning(topic: &str) -> bool {
    topic.starts_with("eq ") || first_placeholder(topic).is_some()
}

/// Shortens a text for error messages.
pub(super) fn shortened(text: &str) -> Arc<str> {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// An error of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AclErrorKind {
    TooManyRules { max: usize },
    EmptyList { list: &'static str },
    ListTooLong { list: &'static str, max: usize },
    NameTooLong { list: &'static str },
    AnonymousUsers,
    PublishCondition,
    QoS,
    Address { text: String, error: CidrError },
    Topic { text: Arc<str>, error: TopicRuleError },
    ConnectTopics,
    ClientPattern { text: Arc<str> },
    ConnectOfClient,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRuleError {
    Filter(FilterError),
    Prefixed,
    TwoPlaceholders,
    DollarPlaceholder,
}

impl fmt::Display for AclErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AclErrorKind::TooManyRules { max } => write!(f, "there are more than {max} rules"),
            AclErrorKind::EmptyList { list: "topics" } => f.write_str("`topics` is empty"),
            AclErrorKind::EmptyList { list } => write!(f, "`{list}` is empty; leave it out to set no condition"),
            AclErrorKind::ListTooLong { list, max } => write!(f, "`{list}` has more than {max} entries"),
            AclErrorKind::NameTooLong { list } => {
                write!(f, "`{list}` has a name of more than {NAME_BYTES_MAX} bytes")
            }
            AclErrorKind::AnonymousUsers => f.write_str("`anonymous = true` and `users` together match no client"),
            AclErrorKind::PublishCondition => f.write_str(
                "`qos` and `retain` are conditions on publishing; use them with `action = \"publish\"` only",
            ),
            AclErrorKind::QoS => f.write_str("`qos` contains a value other than 0, 1 and 2"),
            AclErrorKind::Address { text, error } => write!(f, "address `{}`: {error}", shortened(text)),
            AclErrorKind::Topic { text, error } => write!(f, "topic `{text}`: {error}"),
            AclErrorKind::ConnectTopics => {
                f.write_str("`topics` has no meaning for `action = \"connect\"`; use `clients`")
            }
            AclErrorKind::ConnectOfClient => {
                f.write_str("`action = \"connect\"` has no meaning in the rules of one client")
            }
            AclErrorKind::ClientPattern { text } => write!(
                f,
                "client id `{text}`: `*` must be the last character, and `%u` is the only placeholder"
            ),
        }
    }
}

impl fmt::Display for TopicRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopicRuleError::Filter(FilterError::Empty) => "the filter is empty",
            TopicRuleError::Filter(FilterError::NulCharacter) => "the filter contains the character U+0000",
            TopicRuleError::Filter(FilterError::TooLong) => "the filter is longer than 65535 bytes",
            TopicRuleError::Filter(FilterError::MultiLevelWildcard) => "`#` must be the last level and alone in it",
            TopicRuleError::Filter(FilterError::SingleLevelWildcard) => "`+` must be alone in its level",
            TopicRuleError::Filter(FilterError::Shared) | TopicRuleError::Prefixed => {
                "write the rule for the topic without `$share/<name>/`, `$queue/`, `$exclusive/` or `$delayed/<seconds>/`"
            }
            TopicRuleError::TwoPlaceholders => {
                "two placeholders in one level: a client could choose names that equal another client's combination"
            }
            TopicRuleError::DollarPlaceholder => "a placeholder must not be in a first level that begins with `$`",
        })
    }
}
