//! Nodes that change members of a message's data or metadata.

use std::sync::Arc;

use regex::bytes::{RegexSet, RegexSetBuilder};
use serde_json::{Map, Value as Json};

use crate::chain::message::{ChainMessage, MessageData, plain};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSection {
    Data,
    Metadata,
}

impl MessageSection {
    /// Returns the message with these members added.
    pub fn put<'a>(self, message: &ChainMessage<'a>, members: Vec<(String, Json)>) -> Arc<ChainMessage<'a>> {
        let mut changed = message.clone();
        match self {
            MessageSection::Metadata => {
                for (name, value) in members {
                    changed.metadata.put(name, plain(&value));
                }
            }
            MessageSection::Data => {
                let mut json = message.json().into_owned();
                if let Some(object) = json.as_object_mut() {
                    object.extend(members);
                }
                changed.data = MessageData::Json(json);
            }
        }
        Arc::new(changed)
    }
}

#[derive(Debug)]
pub struct KeysNode {
    /// Source of the members. Copies go to the other place.
    pub section: MessageSection,
    pub operation: KeysOperation,
}

#[derive(Debug)]
pub enum KeysOperation {
    Rename(Vec<(String, String)>),
    Copy(NamePatterns),
    Delete(NamePatterns),
}

impl KeysNode {
    pub fn process<'a>(&self, message: &ChainMessage<'a>) -> Arc<ChainMessage<'a>> {
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
                let target = if self.section == MessageSection::Data {
                    MessageSection::Metadata
                } else {
                    MessageSection::Data
                };
                target.put(message, copied)
            }
        }
    }

    fn members(&self, message: &ChainMessage<'_>) -> Map<String, Json> {
        let json = match self.section {
            MessageSection::Data => message.json().into_owned(),
            MessageSection::Metadata => message.metadata.to_json(),
        };
        match json {
            Json::Object(members) => members,
            _ => Map::new(),
        }
    }

    fn with_changed<'a>(
        &self,
        message: &ChainMessage<'a>,
        change: impl FnOnce(&mut Map<String, Json>),
    ) -> Arc<ChainMessage<'a>> {
        let mut changed = message.clone();
        match self.section {
            MessageSection::Data => {
                let mut json = message.json().into_owned();
                json.as_object_mut().map(change);
                changed.data = MessageData::Json(json);
            }
            MessageSection::Metadata => {
                let mut members = self.members(message);
                change(&mut members);
                changed.metadata = crate::chain::message::Metadata::from_json(&Json::Object(members));
            }
        }
        Arc::new(changed)
    }
}

/// Regular expressions for member names. Each must match the whole name, as in ThingsBoard.
#[derive(Debug)]
pub struct NamePatterns(RegexSet);

/// Memory limits for a node's compiled expressions and their cache. Uses the smallest sufficient one.
const COMPILED_BYTES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Memory limit for all expressions of a chain.
const COMPILED_BYTES_OF_CHAIN: usize = 16 << 20;

/// Memory left for expressions of a chain.
pub struct PatternMemory(usize);

impl Default for PatternMemory {
    fn default() -> PatternMemory {
        PatternMemory(COMPILED_BYTES_OF_CHAIN)
    }
}

impl NamePatterns {
    pub fn parse(patterns: &[String], memory: &mut PatternMemory) -> Result<NamePatterns, String> {
        if patterns.is_empty() {
            return Ok(NamePatterns(RegexSet::empty()));
        }
        let whole: Vec<String> = patterns.iter().map(|pattern| format!("^(?:{pattern})$")).collect();
        let mut problem = format!("the expressions of the chain need more than {COMPILED_BYTES_OF_CHAIN} bytes");
        for bytes in COMPILED_BYTES.into_iter().filter(|bytes| *bytes <= memory.0) {
            let built = RegexSetBuilder::new(&whole)
                .unicode(false)
                .size_limit(bytes)
                .dfa_size_limit(bytes)
                .build();
            match built {
                Ok(built) => {
                    memory.0 -= bytes;
                    return Ok(NamePatterns(built));
                }
                Err(error) => problem = error.to_string(),
            }
        }
        Err(format!("keys: not valid regular expressions: {problem}"))
    }

    fn has(&self, name: &str) -> bool {
        self.0.is_match(name.as_bytes())
    }
}
