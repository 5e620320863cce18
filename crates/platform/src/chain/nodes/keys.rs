//! Data or metadata of a message, and what changes members of them.

use std::rc::Rc;

use regex::bytes::{RegexSet, RegexSetBuilder};
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
    Copy(Names),
    Delete(Names),
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
            KeysOperation::Delete(names) => {
                self.with_changed(message, |members| members.retain(|name, _| !names.has(name)))
            }
            KeysOperation::Copy(names) => {
                let members = self.members(message).into_iter();
                let copied = members.filter(|(name, _)| names.has(name)).collect();
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

/// Names of members by regular expressions, each of which has to fit the whole name, as ThingsBoard has them.
#[derive(Debug)]
pub struct Names(RegexSet);

/// Of all expressions of a node together, compiled: it takes the smallest of these that is enough, and as much for what it remembers
/// of texts.
const COMPILED_BYTES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Of all expressions of a chain.
const COMPILED_BYTES_OF_CHAIN: usize = 16 << 20;

/// What is left for expressions of a chain.
pub struct PatternRoom(usize);

impl Default for PatternRoom {
    fn default() -> PatternRoom {
        PatternRoom(COMPILED_BYTES_OF_CHAIN)
    }
}

impl Names {
    pub fn parse(patterns: &[String], room: &mut PatternRoom) -> Result<Names, String> {
        if patterns.is_empty() {
            return Ok(Names(RegexSet::empty()));
        }
        let whole: Vec<String> = patterns.iter().map(|pattern| format!("^(?:{pattern})$")).collect();
        let mut problem = format!("the chain has more than {COMPILED_BYTES_OF_CHAIN} bytes of them");
        for bytes in COMPILED_BYTES.into_iter().filter(|bytes| *bytes <= room.0) {
            let built = RegexSetBuilder::new(&whole)
                .unicode(false)
                .size_limit(bytes)
                .dfa_size_limit(bytes)
                .build();
            match built {
                Ok(built) => {
                    room.0 -= bytes;
                    return Ok(Names(built));
                }
                Err(error) => problem = error.to_string(),
            }
        }
        Err(format!("keys have to be regular expressions: {problem}"))
    }

    fn has(&self, name: &str) -> bool {
        self.0.is_match(name.as_bytes())
    }
}
