//! Reads HOCON, the format of EMQX's and NanoMQ's configuration, with the line of each value.
//!
//! It reads what these two brokers write and document: comments, nested and repeated keys, objects with and without
//! `=`, lists, quoted and unquoted text, `"""…"""` (with `~`, as EMQX writes it) and `include`. Substitutions
//! (`${name}` outside quotes) and `+=` are rejected. Of repeated keys, the value that counts depends on the broker.
//!
//! The text can come from anyone: size, depth, the length of keys and the number of values are bounded.

mod nanomq;

use std::collections::HashMap;
use std::fmt;

/// Maximum size of a file.
const FILE_BYTES_MAX: usize = 32 << 20;
/// Maximum depth of objects and lists, the words of keys included.
const DEPTH_MAX: usize = 64;
/// Maximum length of the path of a key. The report contains the path of each value.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum length of the paths of all values together.
const PATHS_BYTES_MAX: usize = 64 << 20;
/// Maximum number of values of all files.
const VALUES_MAX: usize = 1_000_000;
/// Maximum number of included files.
const FILES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index in `Hocon::files`.
    pub file: usize,
    pub line: usize,
}

#[derive(Debug)]
pub struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Debug)]
pub enum Value {
    /// A text, number, boolean or null, as typed.
    Scalar {
        text: String,
        is_quoted: bool,
        /// Line on which the text begins, if it has several lines in the file.
        block_line: Option<usize>,
    },
    List(Vec<Node>),
    Object(Object),
}

/// In the order of the file.
#[derive(Debug, Default)]
pub struct Object {
    pub entries: Vec<(String, Node)>,
    index: HashMap<String, usize>,
    /// Entries whose keys have dots, until `nanomq::settle` merges all.
    dotted: Vec<(String, Node)>,
}

impl Object {
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Adds an entry whose key is new.
    fn push(&mut self, key: String, node: Node) {
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, node));
    }
}

/// How repeated keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// Objects merge, and of other values the last one counts.
    Hocon,
    NanoMq,
}

/// A value that another one with its key replaces.
#[derive(Debug)]
pub struct Replaced {
    pub key: String,
    pub place: Place,
    pub by: Place,
}

/// A file with everything that it includes.
#[derive(Debug)]
pub struct Hocon {
    pub root: Node,
    pub files: Vec<String>,
    pub replaced: Vec<Replaced>,
}

/// Returns the text of an included file.
pub type IncludeReader<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

#[derive(Debug, PartialEq, Eq)]
pub struct HoconError {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl fmt::Display for HoconError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for HoconError {}

impl Hocon {
    pub fn parse(file: &str, text: &str, include: &IncludeReader<'_>) -> Result<Hocon, HoconError> {
        Hocon::parse_with(Repeats::Hocon, file, text, include)
    }

    pub fn parse_with(
        repeats: Repeats,
        file: &str,
        text: &str,
        include: &IncludeReader<'_>,
    ) -> Result<Hocon, HoconError> {
        let mut reading = Reading {
            repeats,
            files: Vec::new(),
            replaced: Vec::new(),
            values: 0,
            path_bytes: 0,
            include,
        };
        let mut root = Object::default();
        reading.file(file, text, &mut root, "", 0)?;
        if repeats == Repeats::NanoMq {
            nanomq::settle(&mut root, "", &mut reading.replaced);
        }
        Ok(Hocon {
            root: Node {
                place: Place { file: 0, line: 1 },
                value: Value::Object(root),
            },
            files: reading.files,
            replaced: reading.replaced,
        })
    }
}

struct Reading<'a> {
    repeats: Repeats,
    files: Vec<String>,
    replaced: Vec<Replaced>,
    values: usize,
    /// Length of the paths of the values.
    path_bytes: usize,
    include: &'a IncludeReader<'a>,
}

impl Reading<'_> {
    fn file(&mut self, name: &str, text: &str, into: &mut Object, path: &str, depth: usize) -> Result<(), HoconError> {
        let file = self.files.len();
        self.files.push(name.to_owned());
        let mut parser = Parser {
            reading: self,
            file,
            text,
            at: 0,
            line: 1,
        };
        if text.len() > FILE_BYTES_MAX {
            return Err(parser.error(&format!("the file is larger than {FILE_BYTES_MAX} bytes")));
        }
        if file >= FILES_MAX {
            return Err(parser.error(&format!("more than {FILES_MAX} files are included")));
        }
        if text.starts_with('\u{FEFF}') {
            parser.at = '\u{FEFF}'.len_utf8();
        }
        parser.skip_blank();
        let is_braced = parser.peek() == Some('{');
        if is_braced {
            parser.bump();
        }
        parser.object_body(into, path, depth, is_braced)?;
        parser.skip_blank();
        match parser.peek() {
            None => Ok(()),
            Some(c) => Err(parser.error(&format!("found {c:?} after the end of the object"))),
        }
    }
}

struct Parser<'r, 'i, 't> {
    reading: &'r mut Reading<'i>,
    file: usize,
    text: &'t str,
    at: usize,
    line: usize,
}

impl Parser<'_, '_, '_> {
    fn error(&self, message: &str) -> HoconError {
        HoconError {
            file: self.reading.files[self.file].clone(),
            line: self.line,
            message: message.to_owned(),
        }
    }

    fn place(&self) -> Place {
        Place {
            file: self.file,
            line: self.line,
        }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) {
        if let Some(c) = self.peek() {
            self.at += c.len_utf8();
            self.line += usize::from(c == '\n');
        }
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(|c| c != '\n' && c.is_whitespace()) {
            self.bump();
        }
    }

    /// Skips spaces, lines and comments.
    fn skip_blank(&mut self) {
        loop {
            while self.peek().is_some_and(char::is_whitespace) {
                self.bump();
            }
            if !self.is_comment() {
                return;
            }
            while self.peek().is_some_and(|c| c != '\n') {
                self.bump();
            }
        }
    }

    fn is_comment(&self) -> bool {
        self.rest().starts_with('#') || self.rest().starts_with("//")
    }

    fn object_body(
        &mut self,
        object: &mut Object,
        path: &str,
        depth: usize,
        is_braced: bool,
    ) -> Result<(), HoconError> {
        loop {
            self.skip_blank();
            match self.peek() {
                Some(',') => self.bump(),
                Some('}') if is_braced => {
                    self.bump();
                    return Ok(());
                }
                None if is_braced => return Err(self.error("the file ends inside of `{`")),
                None => return Ok(()),
                Some(_) if self.is_include() => self.include(object, path, depth)?,
                Some(_) => self.entry(object, path, depth)?,
            }
        }
    }

    fn is_include(&self) -> bool {
        let Some(rest) = self.rest().strip_prefix("include") else {
            return false;
        };
        let rest = rest.trim_start_matches([' ', '\t']);
        rest.starts_with('"') || rest.starts_with("file(") || rest.starts_with("required(")
    }

    fn include(&mut self, object: &mut Object, path: &str, depth: usize) -> Result<(), HoconError> {
        self.at += "include".len();
        self.skip_spaces();
        let mut closing = 0;
        for wrapper in ["required(", "file("] {
            if self.rest().starts_with(wrapper) {
                self.at += wrapper.len();
                closing += 1;
            }
        }
        if self.peek() != Some('"') {
            return Err(self.error("expected the name of a file in quotes after `include`"));
        }
        let name = self.quoted()?;
        for _ in 0..closing {
            self.skip_spaces();
            if self.peek() != Some(')') {
                return Err(self.error("expected `)` after the name of the file"));
            }
            self.bump();
        }
        if self.reading.files.contains(&name) {
            return Err(self.error("the file is included twice"));
        }
        let text = (self.reading.include)(&name).map_err(|problem| self.error(&problem))?;
        self.reading.file(&name, &text, object, path, depth)
    }

    fn entry(&mut self, object: &mut Object, path: &str, depth: usize) -> Result<(), HoconError> {
        let place = self.place();
        let words = self.key()?;
        if depth + words.len() >= DEPTH_MAX {
            return Err(self.error(&format!("objects are nested deeper than {DEPTH_MAX} levels")));
        }
        let path_bytes = path.len() + words.iter().map(|word| word.len() + 1).sum::<usize>();
        if path_bytes > PATH_BYTES_MAX {
            return Err(self.error(&format!(
                "the key has {path_bytes} bytes with the keys around it, which is more than {PATH_BYTES_MAX}"
            )));
        }
        self.skip_spaces();
        match self.peek() {
            Some('=' | ':') => {
                self.bump();
                self.skip_blank();
            }
            Some('{') => {}
            Some('+') => return Err(self.error("`+=` is not supported: write the whole list")),
            _ => return Err(self.error("expected `=`, `:` or `{` after the key")),
        }
        let full = words.iter().fold(path.to_owned(), |path, word| joined(&path, word));
        let mut value = self.value(&full, depth + words.len())?;
        // A scalar has the line of its key, so that each line with a key can be found.
        if let Value::Scalar { .. } = value.value {
            value.place = place;
        }
        match self.reading.repeats {
            Repeats::Hocon => self.put(object, path, &words, value),
            Repeats::NanoMq => {
                put_raw(object, &words, value);
                Ok(())
            }
        }
    }

    /// Merges an entry into the object, as HOCON does for repeated keys.
    fn put(&mut self, object: &mut Object, path: &str, words: &[String], node: Node) -> Result<(), HoconError> {
        let Some((word, rest)) = words.split_first() else {
            return Ok(());
        };
        let full = joined(path, word);
        let node = match rest.is_empty() {
            true => node,
            false => {
                let at = object.index.get(word).copied();
                if let Some(Node {
                    value: Value::Object(inner),
                    ..
                }) = at.map(|at| &mut object.entries[at].1)
                {
                    return self.put(inner, &full, rest, node);
                }
                let place = node.place;
                let mut inner = Object::default();
                self.put(&mut inner, &full, rest, node)?;
                Node {
                    place,
                    value: Value::Object(inner),
                }
            }
        };
        self.put_one(object, &full, word, node)
    }

    fn put_one(&mut self, object: &mut Object, full: &str, word: &str, node: Node) -> Result<(), HoconError> {
        let Some(&at) = object.index.get(word) else {
            object.push(word.to_owned(), node);
            return Ok(());
        };
        let old = &mut object.entries[at].1;
        match (&mut old.value, node) {
            (
                Value::Object(old),
                Node {
                    value: Value::Object(new),
                    ..
                },
            ) => {
                for (word, node) in new.entries {
                    self.put_one(old, &joined(full, &word), &word, node)?;
                }
            }
            (_, node) => {
                let by = node.place;
                note_replaced(old, full, by, &mut self.reading.replaced);
                *old = node;
            }
        }
        Ok(())
    }

    fn key(&mut self) -> Result<Vec<String>, HoconError> {
        let mut words = Vec::new();
        loop {
            let word = match self.peek() {
                Some('"') => self.quoted()?,
                _ => {
                    let is_part = |c: char| !c.is_whitespace() && !"{}[]=:+,.\"#$".contains(c);
                    let length = self.rest().find(|c| !is_part(c)).unwrap_or(self.rest().len());
                    let word = self.rest()[..length].to_owned();
                    self.at += length;
                    word
                }
            };
            if word.is_empty() && words.is_empty() && self.peek() != Some('.') {
                return Err(self.error("expected a key"));
            }
            words.push(word);
            match self.peek() {
                Some('.') => self.bump(),
                _ => return Ok(words),
            }
        }
    }

    fn value(&mut self, path: &str, depth: usize) -> Result<Node, HoconError> {
        self.reading.values += 1;
        if self.reading.values > VALUES_MAX {
            return Err(self.error(&format!("the configuration has more than {VALUES_MAX} values")));
        }
        self.reading.path_bytes += path.len();
        if self.reading.path_bytes > PATHS_BYTES_MAX {
            return Err(self.error(&format!(
                "the keys of all values have more than {PATHS_BYTES_MAX} bytes"
            )));
        }
        if depth >= DEPTH_MAX {
            return Err(self.error(&format!("values are nested deeper than {DEPTH_MAX} levels")));
        }
        let place = self.place();
        let value = match self.peek() {
            Some('{') => {
                self.bump();
                let mut object = Object::default();
                self.object_body(&mut object, path, depth, true)?;
                Value::Object(object)
            }
            Some('[') => {
                self.bump();
                Value::List(self.list(path, depth)?)
            }
            _ => self.scalar()?,
        };
        Ok(Node { place, value })
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Vec<Node>, HoconError> {
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            match self.peek() {
                Some(',') => self.bump(),
                Some(']') => {
                    self.bump();
                    return Ok(items);
                }
                None => return Err(self.error("the file ends inside of `[`")),
                Some(_) => {
                    let item = format!("{path}[{}]", items.len() + 1);
                    items.push(self.value(&item, depth + 1)?);
                }
            }
        }
    }

    /// Text in one or more parts on a line.
    fn scalar(&mut self) -> Result<Value, HoconError> {
        let mut text = String::new();
        let mut is_quoted = false;
        let mut parts = 0;
        let mut gap = String::new();
        let mut block_line = None;
        loop {
            match self.peek() {
                Some('"') => {
                    text.push_str(&std::mem::take(&mut gap));
                    let part = match self.rest().starts_with("\"\"\"") {
                        true => {
                            block_line = Some(self.line + usize::from(self.rest()[3..].starts_with("~\n")));
                            self.triple_quoted()?
                        }
                        false => self.quoted()?,
                    };
                    text.push_str(&part);
                    is_quoted = true;
                }
                Some('$') if self.rest().starts_with("${") => {
                    return Err(self.error("substitutions are not supported: write the value, or quote the text"));
                }
                Some(c) if c != '\n' && c.is_whitespace() => {
                    gap.push(c);
                    self.bump();
                    if self.is_comment() {
                        break;
                    }
                    continue;
                }
                None | Some('\n' | ',' | '}' | ']' | '#') => break,
                Some(c @ ('{' | '[')) => return Err(self.error(&format!("found {c:?} behind a text"))),
                Some(c) => {
                    text.push_str(&std::mem::take(&mut gap));
                    text.push(c);
                    self.bump();
                }
            }
            parts += 1;
        }
        match parts {
            0 => Err(self.error("expected a value")),
            _ => Ok(Value::Scalar {
                text,
                is_quoted,
                block_line,
            }),
        }
    }

    fn quoted(&mut self) -> Result<String, HoconError> {
        self.bump();
        let mut text = String::new();
        loop {
            let Some(c) = self.peek() else {
                return Err(self.error("the file ends inside of a quoted text"));
            };
            self.bump();
            match c {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                '\n' => {
                    self.line -= 1;
                    return Err(self.error("the line ends inside of a quoted text"));
                }
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, HoconError> {
        let c = self.peek();
        self.bump();
        Ok(match c {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{C}',
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('u') => {
                let digits = self.rest().get(..4).unwrap_or_default();
                let is_hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = is_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
                let c = code.and_then(char::from_u32);
                let c = c.ok_or_else(|| self.error("expected four hexadecimal digits of a character after `\\u`"))?;
                self.at += 4;
                c
            }
            _ => return Err(self.error("unknown escape in a quoted text")),
        })
    }

    /// EMQX writes `"""~`, indented lines, and `~"""`: the indentation that all lines have is removed.
    fn triple_quoted(&mut self) -> Result<String, HoconError> {
        self.at += 3;
        let Some(length) = self.rest().find("\"\"\"") else {
            return Err(self.error("the file ends inside of `\"\"\"`"));
        };
        let raw = self.rest()[..length].to_owned();
        self.line += raw.matches('\n').count();
        self.at += length + 3;
        let is_indented = |line: &&str| !line.trim().is_empty();
        let Some(block) = raw.strip_prefix("~\n") else {
            return Ok(raw);
        };
        let block = block.strip_suffix('~').unwrap_or(block);
        let lines: Vec<&str> = block.split('\n').collect();
        let spaces = |line: &&str| line.len() - line.trim_start_matches(' ').len();
        let common = lines.iter().filter(|line| is_indented(line)).map(spaces);
        let common = common.min().unwrap_or(0);
        let cut = |line: &&str| line.get(common..).unwrap_or_default().to_owned();
        Ok(lines.iter().map(cut).collect::<Vec<String>>().join("\n"))
    }
}

/// Adds an entry, which can have the key of another one.
fn put_raw(object: &mut Object, words: &[String], node: Node) {
    let Some((first, rest)) = words.split_first() else {
        return;
    };
    let place = node.place;
    let nested = rest.iter().rev().fold(node, |node, word| {
        let mut inner = Object::default();
        inner.entries.push((word.clone(), node));
        Node {
            place,
            value: Value::Object(inner),
        }
    });
    let entries = match rest.is_empty() {
        true => &mut object.entries,
        false => &mut object.dotted,
    };
    entries.push((first.clone(), nested));
}

fn note_replaced(node: &Node, key: &str, by: Place, replaced: &mut Vec<Replaced>) {
    match &node.value {
        Value::Object(object) if !object.entries.is_empty() => {
            for (word, node) in &object.entries {
                note_replaced(node, &joined(key, word), by, replaced);
            }
        }
        Value::List(items) if !items.is_empty() => {
            for (index, node) in items.iter().enumerate() {
                note_replaced(node, &format!("{key}[{}]", index + 1), by, replaced);
            }
        }
        _ => replaced.push(Replaced {
            key: key.to_owned(),
            place: node.place,
            by,
        }),
    }
}

pub fn joined(path: &str, word: &str) -> String {
    match path.is_empty() {
        true => word.to_owned(),
        false => format!("{path}.{word}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Hocon, HoconError> {
        Hocon::parse("test.conf", text, &|name| Err(format!("cannot read {name}")))
    }

    fn find<'a>(hocon: &'a Hocon, path: &str) -> &'a Node {
        path.split('.').fold(&hocon.root, |node, word| match &node.value {
            Value::Object(object) => object.get(word).unwrap_or_else(|| panic!("{word} of {path}")),
            _ => panic!("{path}"),
        })
    }

    #[track_caller]
    fn assert_text(hocon: &Hocon, path: &str, expected: &str, line: usize) {
        let node = find(hocon, path);
        let Value::Scalar { text, .. } = &node.value else {
            panic!("{node:?}");
        };
        assert_eq!((text.as_str(), node.place.line), (expected, line));
    }

    #[test]
    fn values_have_their_lines() {
        let text = "# comment\nmqtt {\n  a = 1KB // no\n  \"b c\" : \"x\\n#y\"\n}\nmqtt.d.e = two words # c\n\
                    l = [1, {k = v}\n 2]\nt = \"\"\"~\n    one\n      two\n  ~\"\"\"\nlast = http://h/p";
        let hocon = parse(text).expect("valid");
        assert_text(&hocon, "mqtt.a", "1KB", 3);
        assert_text(&hocon, "mqtt.b c", "x\n#y", 4);
        assert_text(&hocon, "mqtt.d.e", "two words", 6);
        assert_text(&hocon, "t", "one\n  two\n", 9);
        assert_text(&hocon, "last", "http://h/p", 13);
        let Value::List(items) = &find(&hocon, "l").value else {
            panic!("a list");
        };
        assert_eq!(items.iter().map(|item| item.place.line).collect::<Vec<_>>(), [7, 7, 8]);
    }

    #[test]
    fn repeated_objects_merge_and_repeated_values_replace() {
        let hocon = parse("a { x = 1, y = 2 }\na { y = 3 }\na.z = 4").expect("valid");
        assert_text(&hocon, "a.x", "1", 1);
        assert_text(&hocon, "a.y", "3", 2);
        assert_text(&hocon, "a.z", "4", 3);
        let replaced: Vec<_> = hocon
            .replaced
            .iter()
            .map(|one| (one.key.as_str(), one.place.line, one.by.line))
            .collect();
        assert_eq!(replaced, [("a.y", 1, 2)]);
    }

    #[test]
    fn included_files_are_read_in_place() {
        let read = |name: &str| match name {
            "/pwd" => Ok("\n\"admin\": \"x\"".to_owned()),
            _ => Err("no such file".to_owned()),
        };
        let hocon = Hocon::parse("main", "auth { password = {include \"/pwd\"} }", &read).expect("valid");
        let node = find(&hocon, "auth.password.admin");
        assert_eq!((hocon.files[node.place.file].as_str(), node.place.line), ("/pwd", 2));
        let error = Hocon::parse("main", "a = 1\ninclude file(\"/no\")", &read).unwrap_err();
        assert_eq!(error.to_string(), "main:2: no such file");
    }

    #[test]
    fn invalid_text_is_an_error_with_its_line() {
        for (text, line, part) in [
            ("a = {\nb = 1\n", 3, "inside of `{`"),
            ("a = [1,\n", 2, "inside of `[`"),
            ("\na", 2, "expected `=`"),
            ("a = \"x", 1, "quoted text"),
            ("a = \"x\n\"", 1, "the line ends"),
            ("a = ${b}", 1, "substitutions"),
            ("a += 1", 1, "`+=`"),
            ("a = \"\\uD800\"", 1, "hexadecimal"),
            ("a = 1\n}", 2, "expected a key"),
            ("a = ", 1, "expected a value"),
            ("a = \"\"\"x", 1, "inside of"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(part), "{text:?}: {error}");
            assert_eq!(error.line, line, "{text:?}: {error}");
        }
    }

    #[test]
    fn keys_and_their_paths_are_bounded() {
        let long = "k".repeat(600);
        assert!(parse(&format!("{long} = 1")).is_ok());
        for (text, line) in [
            (format!("\n{} = 1", "k".repeat(2000)), 2),
            (format!("\"{}\" = 1", "k".repeat(2000)), 1),
            (format!("a {{\n{long} {{\n{long} = 1\n}}\n}}"), 3),
            (format!("{long} = [\n{{ {long} = 1 }}]"), 2),
            (format!("{long}.{long} = 1"), 1),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.message.contains("more than 1024"), "{error}");
            assert_eq!(error.line, line, "{error}");
            assert!(error.to_string().len() < 200, "the error does not contain the key");
        }
        let many = format!("{} = [{}]", "k".repeat(1000), "1,".repeat(PATHS_BYTES_MAX / 1000));
        let error = parse(&many).unwrap_err();
        assert!(error.message.contains("the keys of all values"), "{error}");
    }

    #[test]
    fn nesting_is_bounded() {
        for text in [
            "{a=".repeat(100_000),
            "a=".to_owned() + &"[".repeat(100_000),
            "a.".repeat(100_000) + "b=1",
        ] {
            assert!(
                parse(&text).unwrap_err().message.contains("nested deeper"),
                "{}",
                &text[..8]
            );
        }
    }
}
