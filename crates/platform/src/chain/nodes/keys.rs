//! Data or metadata of a message, and what changes members of them.

use std::rc::Rc;

use serde_json::{Map, Value as Json};

use crate::chain::message::{Data, Message, plain};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Data,
    Metadata,
}

impl Place {
    /// The message with these members added.
    pub fn put<'a>(self, message: &Message<'a>, members: Vec<(String, Json)>) -> Rc<Message<'a>> {
        let mut changed = message.clone();
        match self {
            Place::Metadata => {
                for (name, value) in members {
                    changed.metadata.put(name, plain(&value));
                }
            }
            Place::Data => {
                let mut json = message.json().into_owned();
                if let Some(object) = json.as_object_mut() {
                    object.extend(members);
                }
                changed.data = Data::Json(json);
            }
        }
        Rc::new(changed)
    }
}

#[derive(Debug)]
pub struct KeysNode {
    /// Where members come from; copies go to the other place.
    pub place: Place,
    pub operation: KeysOperation,
}

#[derive(Debug)]
pub enum KeysOperation {
    Rename(Vec<(String, String)>),
    /// Names, or patterns with `*` and `.*`.
    Copy(Vec<String>),
    Delete(Vec<String>),
}

impl KeysNode {
    pub fn process<'a>(&self, message: &Message<'a>) -> Rc<Message<'a>> {
        match &self.operation {
            KeysOperation::Rename(names) => self.with_changed(message, |members| {
                for (from, to) in names {
                    if let Some(value) = members.remove(from) {
                        members.insert(to.clone(), value);
                    }
                }
            }),
            KeysOperation::Delete(patterns) => self.with_changed(message, |members| {
                members.retain(|name, _| !matches_any(patterns, name))
            }),
            KeysOperation::Copy(patterns) => {
                let members = self.members(message).into_iter();
                let copied = members.filter(|(name, _)| matches_any(patterns, name)).collect();
                let target = if self.place == Place::Data {
                    Place::Metadata
                } else {
                    Place::Data
                };
                target.put(message, copied)
            }
        }
    }

    fn members(&self, message: &Message<'_>) -> Map<String, Json> {
        let json = match self.place {
            Place::Data => message.json().into_owned(),
            Place::Metadata => message.metadata.to_json(),
        };
        match json {
            Json::Object(members) => members,
            _ => Map::new(),
        }
    }

    fn with_changed<'a>(&self, message: &Message<'a>, change: impl FnOnce(&mut Map<String, Json>)) -> Rc<Message<'a>> {
        let mut changed = message.clone();
        match self.place {
            Place::Data => {
                let mut json = message.json().into_owned();
                json.as_object_mut().map(change);
                changed.data = Data::Json(json);
            }
            Place::Metadata => {
                let mut members = self.members(message);
                change(&mut members);
                changed.metadata = crate::chain::message::Metadata::from_json(&Json::Object(members));
            }
        }
        Rc::new(changed)
    }
}

fn matches_any(patterns: &[String], name: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| matches(&pattern.replace(".*", "*"), name))
}

/// `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}
