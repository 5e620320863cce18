//! Parser for the part of the `.proto` language that profiles use: proto3 messages, nested messages, enums, maps,
//! `oneof`. No imports and extensions; options are ignored. The last message of a file is the payload's.

use std::collections::HashMap;

#[derive(Debug)]
pub struct Schema {
    pub messages: Vec<MessageType>,
    pub enums: Vec<HashMap<i32, String>>,
    pub root: usize,
}

#[derive(Debug, Default)]
pub struct MessageType {
    /// In the order of the file, which is the order in JSON.
    pub fields: Vec<FieldDescriptor>,
}

#[derive(Debug)]
pub struct FieldDescriptor {
    pub number: u32,
    /// JSON name: `fieldName` for `field_name`.
    pub name: String,
    pub kind: FieldKind,
    pub label: FieldLabel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldLabel {
    /// A missing field has its default value.
    Plain,
    /// A missing field is absent in JSON.
    Optional,
    Repeated,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FieldKind {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
    Message(usize),
    Enum(usize),
    Map(Box<FieldKind>, Box<FieldKind>),
    /// A type name that is not resolved yet.
    Named(String),
}

const SCHEMA_BYTES_MAX: usize = 256 << 10;
const DEPTH_MAX: usize = 32;

impl Schema {
    pub fn parse(text: &str) -> Result<Schema, String> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(format!("the schema has more than {SCHEMA_BYTES_MAX} bytes"));
        }
        let mut parser = SchemaParser::new(text)?;
        parser.file()?;
        let root = parser.root.ok_or("At least one Message definition should exists!")?;
        let mut schema = Schema {
            messages: parser.messages,
            enums: parser.enums,
            root,
        };
        schema.resolve(&parser.names, &parser.scopes)?;
        Ok(schema)
    }

    /// Resolves type names, from the innermost scope outwards.
    fn resolve(&mut self, names: &HashMap<String, FieldKind>, scopes: &[String]) -> Result<(), String> {
        for (message, scope) in self.messages.iter_mut().zip(scopes) {
            for field in &mut message.fields {
                resolve_kind(&mut field.kind, scope, names)?;
            }
        }
        Ok(())
    }
}

fn resolve_kind(kind: &mut FieldKind, scope: &str, names: &HashMap<String, FieldKind>) -> Result<(), String> {
    match kind {
        FieldKind::Map(_, value) => resolve_kind(value, scope, names),
        FieldKind::Named(name) => {
            let mut around = Some(scope);
            while let Some(inside) = around {
                let full = if inside.is_empty() {
                    name.clone()
                } else {
                    format!("{inside}.{name}")
                };
                if let Some(found) = names.get(&full) {
                    *kind = found.clone();
                    return Ok(());
                }
                around = if inside.is_empty() {
                    None
                } else {
                    Some(inside.rsplit_once('.').map_or("", |(outer, _)| outer))
                };
            }
            Err(format!("{name} is not defined"))
        }
        _ => Ok(()),
    }
}

struct SchemaParser {
    tokens: Vec<String>,
    at: usize,
    package: String,
    messages: Vec<MessageType>,
    /// The full name of each message.
    scopes: Vec<String>,
    enums: Vec<HashMap<i32, String>>,
    names: HashMap<String, FieldKind>,
    root: Option<usize>,
}

impl SchemaParser {
    fn new(text: &str) -> Result<SchemaParser, String> {
        Ok(SchemaParser {
            tokens: tokens(text)?,
            at: 0,
            package: String::new(),
            messages: Vec::new(),
            scopes: Vec::new(),
            enums: Vec::new(),
            names: HashMap::new(),
            root: None,
        })
    }

    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Result<String, String> {
        let token = self.tokens.get(self.at).cloned().ok_or("the schema ends too early")?;
        self.at += 1;
        Ok(token)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let found = self.next()?;
        if found == wanted {
            Ok(())
        } else {
            Err(format!("expected {wanted:?}, found {found:?}"))
        }
    }

    fn takes(&mut self, wanted: &str) -> bool {
        let takes = self.peek() == Some(wanted);
        self.at += usize::from(takes);
        takes
    }

    fn skip_statement(&mut self) -> Result<(), String> {
        while self.next()? != ";" {}
        Ok(())
    }

    fn file(&mut self) -> Result<(), String> {
        while self.peek().is_some() {
            match self.next()?.as_str() {
                "syntax" => {
                    self.expect("=")?;
                    let syntax = self.next()?;
                    if syntax.trim_matches(['"', '\'']) != "proto3" {
                        return Err(format!("syntax {syntax} is not supported, use proto3"));
                    }
                    self.expect(";")?;
                }
                "package" => {
                    self.package = self.next()?;
                    self.expect(";")?;
                }
                "message" => self.root = Some(self.message("", 0)?),
                "enum" => self.enumeration("")?,
                "import" => return Err("Schema imports don't support!".to_owned()),
                "option" => self.skip_statement()?,
                ";" => {}
                other => return Err(format!("unexpected {other:?}")),
            }
        }
        Ok(())
    }

    fn message(&mut self, scope: &str, depth: usize) -> Result<usize, String> {
        if depth >= DEPTH_MAX {
            return Err(format!("messages are nested more than {DEPTH_MAX} deep"));
        }
        let name = self.next()?;
        let full = if scope.is_empty() {
            name
        } else {
            format!("{scope}.{name}")
        };
        let index = self.messages.len();
        self.messages.push(MessageType::default());
        self.scopes.push(full.clone());
        self.names.insert(full.clone(), FieldKind::Message(index));
        if !self.package.is_empty() {
            self.names
                .insert(format!("{}.{full}", self.package), FieldKind::Message(index));
        }
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.takes("}") {
            self.member(&full, depth, &mut fields)?;
        }
        self.messages[index].fields = fields;
        Ok(index)
    }

    fn member(&mut self, scope: &str, depth: usize, fields: &mut Vec<FieldDescriptor>) -> Result<(), String> {
        match self.peek().unwrap_or_default() {
            "message" => {
                self.at += 1;
                self.message(scope, depth + 1)?;
            }
            "enum" => {
                self.at += 1;
                self.enumeration(scope)?;
            }
            "oneof" => {
                self.at += 2;
                self.expect("{")?;
                while !self.takes("}") {
                    let mut field = self.field()?;
                    field.label = FieldLabel::Optional;
                    fields.push(field);
                }
            }
            "reserved" | "option" => self.skip_statement()?,
            ";" => self.at += 1,
            _ => fields.push(self.field()?),
        }
        Ok(())
    }

    fn field(&mut self) -> Result<FieldDescriptor, String> {
        let label = if self.takes("repeated") {
            FieldLabel::Repeated
        } else if self.takes("optional") {
            FieldLabel::Optional
        } else {
            FieldLabel::Plain
        };
        if self.peek() == Some("required") {
            return Err("Required labels are not supported!".to_owned());
        }
        let kind = self.kind()?;
        let name = self.next()?;
        self.expect("=")?;
        let number = self.next()?;
        let number = number
            .parse()
            .map_err(|_| format!("{number:?} is not a field number"))?;
        if self.takes("[") {
            while self.next()? != "]" {}
        }
        self.expect(";")?;
        let label = if matches!(kind, FieldKind::Map(..)) {
            FieldLabel::Repeated
        } else {
            label
        };
        Ok(FieldDescriptor {
            number,
            name: json_name(&name),
            kind,
            label,
        })
    }

    fn kind(&mut self) -> Result<FieldKind, String> {
        let name = self.next()?;
        if name == "map" {
            self.expect("<")?;
            let key = self.kind_of_one()?;
            self.expect(",")?;
            let value = self.kind_of_one()?;
            self.expect(">")?;
            return Ok(FieldKind::Map(Box::new(key), Box::new(value)));
        }
        Ok(Self::plain_kind(&name))
    }

    /// A map cannot contain a map.
    fn kind_of_one(&mut self) -> Result<FieldKind, String> {
        match self.next()?.as_str() {
            "map" => Err("a map cannot have maps as keys or values".to_owned()),
            name => Ok(Self::plain_kind(name)),
        }
    }

    fn plain_kind(name: &str) -> FieldKind {
        match name {
            "double" => FieldKind::Double,
            "float" => FieldKind::Float,
            "int32" => FieldKind::Int32,
            "int64" => FieldKind::Int64,
            "uint32" => FieldKind::Uint32,
            "uint64" => FieldKind::Uint64,
            "sint32" => FieldKind::Sint32,
            "sint64" => FieldKind::Sint64,
            "fixed32" => FieldKind::Fixed32,
            "fixed64" => FieldKind::Fixed64,
            "sfixed32" => FieldKind::Sfixed32,
            "sfixed64" => FieldKind::Sfixed64,
            "bool" => FieldKind::Bool,
            "string" => FieldKind::String,
            "bytes" => FieldKind::Bytes,
            other => FieldKind::Named(other.trim_start_matches('.').to_owned()),
        }
    }

    fn enumeration(&mut self, scope: &str) -> Result<(), String> {
        let name = self.next()?;
        let full = if scope.is_empty() {
            name
        } else {
            format!("{scope}.{name}")
        };
        self.names.insert(full, FieldKind::Enum(self.enums.len()));
        self.expect("{")?;
        let mut values = HashMap::new();
        while !self.takes("}") {
            let name = self.next()?;
            if matches!(name.as_str(), "option" | "reserved") {
                self.skip_statement()?;
                continue;
            }
            self.expect("=")?;
            let number = self.next()?;
            let number = number.parse().map_err(|_| format!("{number:?} is not an enum value"))?;
            values.entry(number).or_insert(name);
            self.skip_statement()?;
        }
        self.enums.push(values);
        Ok(())
    }
}

/// Converts `field_name` to `fieldName`.
fn json_name(name: &str) -> String {
    let mut json = String::with_capacity(name.len());
    let mut is_upper = false;
    for letter in name.chars() {
        if letter == '_' {
            is_upper = true;
        } else if std::mem::take(&mut is_upper) {
            json.push(letter.to_ascii_uppercase());
        } else {
            json.push(letter);
        }
    }
    json
}

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after).trim_start();
            continue;
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").ok_or("unterminated comment")?.1.trim_start();
            continue;
        } else if first == '"' || first == '\'' {
            rest[1..].find(first).ok_or("unterminated string")? + 2
        } else if first.is_ascii_alphanumeric() || matches!(first, '_' | '.' | '-') {
            let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
            rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_maps_are_rejected_at_any_depth() {
        let nested = |depth: usize| {
            let (open, close) = ("map<string, ".repeat(depth), ">".repeat(depth));
            format!("syntax = \"proto3\"; message M {{ {open}int32{close} values = 1; }}")
        };
        assert!(Schema::parse(&nested(1)).is_ok());
        assert!(Schema::parse(&nested(2)).is_err());
        assert!(Schema::parse(&nested(20_000)).is_err());
    }
}
