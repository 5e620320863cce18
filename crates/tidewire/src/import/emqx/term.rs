//! Terms of Erlang, and the files in which EMQX's archive contains the tables of its database.
//!
//! A table is a log of OTP's `disk_log` in the internal format, which Mnesia writes as backup:
//!
//! ```text
//! 01 02 03 04  status:u32                        the head of the log
//! length:u32  "bWLA"  [MD5 of the length:16]     an item; with MD5 if length >= 65528
//! 83 …                                           a term in the external term format, `length` bytes
//! ```
//!
//! The first term is the header of the backup, the next the definition `{schema, Table, Properties}`, all others
//! records `{Table, Key, …}`, or `{Table, Key}` for a deleted one. The definition names the fields of the records.
//!
//! The bytes can come from anyone: lengths are checked against the input, depth is bounded, and all tables of an
//! archive share one budget of terms.

use std::collections::HashMap;

/// Maximum depth of nested terms.
const DEPTH_MAX: usize = 64;
/// Maximum number of terms of all tables of an archive.
const TERMS_MAX: usize = 2_000_000;
/// Maximum number of deletions in a file. Each scans the records before it.
const DELETIONS_MAX: usize = 1000;
const LOG_HEAD: [u8; 4] = [1, 2, 3, 4];
const ITEM_MAGIC: [u8; 4] = *b"bWLA";
/// Items of this length have a checksum.
const LONG_ITEM: usize = 65_528;
const CHECKSUM_BYTES: usize = 16;
const TERM_VERSION: u8 = 131;

#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    Atom(String),
    Integer(i64),
    Float(f64),
    /// A binary or a string.
    Bytes(Vec<u8>),
    Tuple(Vec<Term>),
    List(Vec<Term>),
    Map(Vec<(Term, Term)>),
    /// A process, a reference, a function, or a number beyond 64 bits.
    Other,
}

impl Term {
    pub fn text(&self) -> Option<&str> {
        match self {
            Term::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn atom(&self) -> Option<&str> {
        match self {
            Term::Atom(name) => Some(name),
            _ => None,
        }
    }

    pub fn is_atom(&self, expected: &str) -> bool {
        self.atom() == Some(expected)
    }

    /// Returns the text of a binary, a string or an atom.
    pub fn name(&self) -> Option<&str> {
        self.text().or(self.atom())
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            Term::Integer(number) => Some(*number),
            _ => None,
        }
    }

    pub fn tuple(&self) -> &[Term] {
        match self {
            Term::Tuple(items) => items,
            _ => &[],
        }
    }

    pub fn list(&self) -> Option<&[Term]> {
        match self {
            Term::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn field(&self, key: &str) -> Option<&Term> {
        match self {
            Term::Map(fields) => fields
                .iter()
                .find(|(name, _)| name.name() == Some(key))
                .map(|(_, term)| term),
            _ => None,
        }
    }
}

/// The number of terms that the tables of an archive may still have.
pub struct TermBudget {
    left: usize,
}

impl Default for TermBudget {
    fn default() -> TermBudget {
        TermBudget { left: TERMS_MAX }
    }
}

impl TermBudget {
    fn take(&mut self) -> Result<(), &'static str> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or("the tables of the archive have more than 2000000 terms")?;
        Ok(())
    }
}

/// A table of an archive.
#[derive(Debug)]
pub struct Table {
    fields: HashMap<String, usize>,
    records: Vec<Vec<Term>>,
    deletions: usize,
}

/// A record with the names of its fields.
pub struct Record<'a> {
    table: &'a Table,
    terms: &'a [Term],
}

impl<'a> Record<'a> {
    pub fn get(&self, field: &str) -> Option<&'a Term> {
        self.terms.get(*self.table.fields.get(field)?)
    }
}

impl Table {
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter().map(|terms| Record { table: self, terms })
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn read(name: &str, bytes: &[u8], budget: &mut TermBudget) -> Result<Table, String> {
        let mut table = Table {
            fields: HashMap::new(),
            records: Vec::new(),
            deletions: 0,
        };
        if bytes.get(..4) != Some(&LOG_HEAD) || bytes.len() < 8 {
            return Err("this is not a backup of Mnesia".to_owned());
        }
        let mut log = Log { bytes, offset: 8 };
        let mut has_header = false;
        while let Some((offset, item)) = log.next()? {
            let mut reader = TermReader {
                bytes: item,
                at: 0,
                budget,
            };
            let term = reader
                .whole()
                .map_err(|problem| format!("byte {}: {problem}", offset + reader.at))?;
            let Term::Tuple(items) = term else {
                return Err(format!("byte {offset}: expected a record"));
            };
            match items.first().and_then(Term::atom) {
                Some("log_header") if !has_header => {
                    has_header = items.get(1).is_some_and(|kind| kind.is_atom("backup_log"));
                }
                _ if !has_header => return Err(format!("byte {offset}: expected the header of a backup")),
                Some("schema") => table
                    .define(name, &items)
                    .ok_or("the definition of the table is invalid")?,
                Some(table_name) if table_name == name => table.put(items)?,
                _ => return Err(format!("byte {offset}: expected a record of {name}")),
            }
        }
        match table.fields.is_empty() && !table.records.is_empty() {
            true => Err("the definition of the table is missing".to_owned()),
            false => Ok(table),
        }
    }

    fn define(&mut self, name: &str, schema: &[Term]) -> Option<()> {
        let [_, table, properties] = schema else { return None };
        if !table.is_atom(name) {
            return Some(());
        }
        let attributes = properties.list()?.iter().find_map(|property| match property.tuple() {
            [key, value] if key.is_atom("attributes") => value.list(),
            _ => None,
        })?;
        // The name of the record comes first.
        let names = attributes.iter().enumerate();
        self.fields = names
            .map(|(at, field)| Some((field.atom()?.to_owned(), at + 1)))
            .collect::<Option<_>>()?;
        Some(())
    }

    fn put(&mut self, items: Vec<Term>) -> Result<(), String> {
        if items.len() != 2 {
            self.records.push(items);
            return Ok(());
        }
        self.deletions += 1;
        if self.deletions > DELETIONS_MAX {
            return Err(format!("the table contains more than {DELETIONS_MAX} deletions"));
        }
        self.records.retain(|record| record.get(1) != items.get(1));
        Ok(())
    }
}

struct Log<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Log<'a> {
    /// Returns the next item and its offset.
    fn next(&mut self) -> Result<Option<(usize, &'a [u8])>, String> {
        let rest = &self.bytes[self.offset..];
        if rest.is_empty() {
            return Ok(None);
        }
        let cut_off = || format!("byte {}: the file is cut off", self.offset);
        let (length, magic) = (rest.get(..4).ok_or_else(cut_off)?, rest.get(4..8).ok_or_else(cut_off)?);
        if magic != ITEM_MAGIC {
            return Err(format!("byte {}: an item has an unknown mark", self.offset));
        }
        let length = u32::from_be_bytes(*length.first_chunk().expect("four bytes")) as usize;
        let begin = if length >= LONG_ITEM { 8 + CHECKSUM_BYTES } else { 8 };
        let item = rest
            .get(begin..)
            .and_then(|rest| rest.get(..length))
            .ok_or_else(cut_off)?;
        let offset = self.offset + begin;
        self.offset = offset + length;
        Ok(Some((offset, item)))
    }
}

struct TermReader<'a, 'b> {
    bytes: &'a [u8],
    at: usize,
    budget: &'b mut TermBudget,
}

impl<'a> TermReader<'a, '_> {
    fn whole(&mut self) -> Result<Term, &'static str> {
        if self.u8()? != TERM_VERSION {
            return Err("this is not a term of Erlang");
        }
        let term = self.term(0)?;
        match self.at == self.bytes.len() {
            true => Ok(term),
            false => Err("more bytes than the term has"),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let end = self.at.checked_add(length);
        let taken = end
            .and_then(|end| self.bytes.get(self.at..end))
            .ok_or("the term is cut off")?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let taken = self.take(N)?;
        Ok(*taken.first_chunk().expect("as many bytes as asked for"))
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<usize, &'static str> {
        self.array().map(|bytes| u16::from_be_bytes(bytes).into())
    }

    fn u32(&mut self) -> Result<usize, &'static str> {
        self.array().map(|bytes| u32::from_be_bytes(bytes) as usize)
    }

    fn term(&mut self, depth: usize) -> Result<Term, &'static str> {
        if depth > DEPTH_MAX {
            return Err("the terms are nested too deeply");
        }
        self.budget.take()?;
        Ok(match self.u8()? {
            97 => Term::Integer(self.u8()?.into()),
            98 => Term::Integer(i32::from_be_bytes(self.array()?).into()),
            70 => Term::Float(f64::from_be_bytes(self.array()?)),
            99 => {
                let text = std::str::from_utf8(self.take(31)?).unwrap_or_default();
                Term::Float(text.trim_end_matches('\0').parse().unwrap_or_default())
            }
            100 => {
                let length = self.u16()?;
                self.latin1_atom(length)?
            }
            115 => {
                let length = self.u8()?.into();
                self.latin1_atom(length)?
            }
            118 => {
                let length = self.u16()?;
                self.atom(length)?
            }
            119 => {
                let length = self.u8()?.into();
                self.atom(length)?
            }
            104 => {
                let length = self.u8()?.into();
                Term::Tuple(self.many(length, depth)?)
            }
            105 => {
                let length = self.u32()?;
                Term::Tuple(self.many(length, depth)?)
            }
            106 => Term::List(Vec::new()),
            107 => {
                let length = self.u16()?;
                Term::Bytes(self.take(length)?.to_vec())
            }
            108 => {
                let length = self.u32()?;
                let mut items = self.many(length, depth)?;
                match self.term(depth + 1)? {
                    Term::List(tail) if tail.is_empty() => {}
                    // An improper list.
                    tail => items.push(tail),
                }
                Term::List(items)
            }
            109 => {
                let length = self.u32()?;
                Term::Bytes(self.take(length)?.to_vec())
            }
            77 => {
                let length = self.u32()?;
                self.take(length.saturating_add(1))?;
                Term::Other
            }
            110 => {
                let length = self.u8()?.into();
                self.big(length)?
            }
            111 => {
                let length = self.u32()?;
                self.big(length)?
            }
            116 => {
                let length = self.u32()?;
                let terms = self.many(length.checked_mul(2).ok_or("the term is cut off")?, depth)?;
                let mut terms = terms.into_iter();
                let mut fields = Vec::new();
                while let (Some(key), Some(value)) = (terms.next(), terms.next()) {
                    fields.push((key, value));
                }
                Term::Map(fields)
            }
            // A process: node, number, serial, creation.
            tag @ (103 | 88) => {
                self.term(depth + 1)?;
                self.take(if tag == 88 { 12 } else { 9 })?;
                Term::Other
            }
            // A reference: node, creation, numbers.
            tag @ (114 | 90) => {
                let numbers = self.u16()?;
                self.term(depth + 1)?;
                self.take(numbers * 4 + if tag == 90 { 4 } else { 1 })?;
                Term::Other
            }
            // A function: its size includes the size.
            112 => {
                let length = self.u32()?.checked_sub(4).ok_or("the size of a function is invalid")?;
                self.take(length)?;
                Term::Other
            }
            113 => {
                self.many(3, depth)?;
                Term::Other
            }
            _ => return Err("the term has an unknown type"),
        })
    }

    fn many(&mut self, length: usize, depth: usize) -> Result<Vec<Term>, &'static str> {
        // Each term has a byte at least, so that a wrong length does not allocate memory.
        if length > self.bytes.len() - self.at {
            return Err("the term is cut off");
        }
        (0..length).map(|_| self.term(depth + 1)).collect()
    }

    fn atom(&mut self, length: usize) -> Result<Term, &'static str> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "an atom is not UTF-8")?;
        Ok(Term::Atom(text.to_owned()))
    }

    fn latin1_atom(&mut self, length: usize) -> Result<Term, &'static str> {
        Ok(Term::Atom(
            self.take(length)?.iter().map(|&byte| char::from(byte)).collect(),
        ))
    }

    fn big(&mut self, length: usize) -> Result<Term, &'static str> {
        let is_negative = self.u8()? != 0;
        let digits = self.take(length)?;
        let significant = digits.len() - digits.iter().rev().take_while(|&&byte| byte == 0).count();
        if significant > 8 {
            return Ok(Term::Other);
        }
        let value = digits[..significant]
            .iter()
            .rev()
            .fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        Ok(match (i64::try_from(value), is_negative) {
            (Ok(value), false) => Term::Integer(value),
            (Ok(value), true) => Term::Integer(-value),
            _ => Term::Other,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Writes a term, for archives of tests.
    pub fn put(term: &Term, out: &mut Vec<u8>) {
        let length = |length: usize| (length as u32).to_be_bytes();
        match term {
            Term::Atom(name) => {
                out.extend([119, name.len() as u8]);
                out.extend(name.as_bytes());
            }
            Term::Integer(number @ 0..=255) => out.extend([97, *number as u8]),
            Term::Integer(number) => {
                out.extend([110, 8, u8::from(*number < 0)]);
                out.extend(number.unsigned_abs().to_le_bytes());
            }
            Term::Bytes(bytes) => {
                out.push(109);
                out.extend(length(bytes.len()));
                out.extend(bytes);
            }
            Term::Tuple(items) => {
                out.extend([104, items.len() as u8]);
                items.iter().for_each(|item| put(item, out));
            }
            Term::List(items) if items.is_empty() => out.push(106),
            Term::List(items) => {
                out.push(108);
                out.extend(length(items.len()));
                items.iter().for_each(|item| put(item, out));
                out.push(106);
            }
            Term::Map(fields) => {
                out.push(116);
                out.extend(length(fields.len()));
                for (key, value) in fields {
                    put(key, out);
                    put(value, out);
                }
            }
            Term::Float(number) => {
                out.push(70);
                out.extend(number.to_be_bytes());
            }
            Term::Other => out.extend([112, 0, 0, 0, 4]),
        }
    }

    pub fn atom(name: &str) -> Term {
        Term::Atom(name.to_owned())
    }

    pub fn bytes(text: &str) -> Term {
        Term::Bytes(text.as_bytes().to_vec())
    }

    pub fn tuple(items: &[Term]) -> Term {
        Term::Tuple(items.to_vec())
    }

    /// Returns the file of a table.
    pub fn table_file(name: &str, fields: &[&str], records: &[Vec<Term>]) -> Vec<u8> {
        let mut file = vec![1, 2, 3, 4, 99, 88, 77, 11];
        let mut item = |term: &Term| {
            let mut body = vec![TERM_VERSION];
            put(term, &mut body);
            file.extend((body.len() as u32).to_be_bytes());
            file.extend(ITEM_MAGIC);
            if body.len() >= LONG_ITEM {
                file.extend([0; CHECKSUM_BYTES]);
            }
            file.extend(body);
        };
        item(&tuple(&[atom("log_header"), atom("backup_log"), bytes("1.2")]));
        let fields = Term::List(fields.iter().map(|field| atom(field)).collect());
        let properties = Term::List(vec![tuple(&[atom("attributes"), fields])]);
        item(&tuple(&[atom("schema"), atom(name), properties]));
        for record in records {
            item(&Term::Tuple([&[atom(name)], record.as_slice()].concat()));
        }
        file
    }

    fn read(file: &[u8]) -> Result<Table, String> {
        Table::read("t", file, &mut TermBudget::default())
    }

    fn example() -> Vec<u8> {
        let map = Term::Map(vec![(atom("k"), Term::Integer(-300))]);
        let long = Term::Bytes(vec![b'x'; 70_000]);
        table_file(
            "t",
            &["key", "value"],
            &[
                vec![bytes("a"), map],
                vec![bytes("b"), long],
                vec![bytes("c"), Term::Other],
                vec![bytes("b")],
            ],
        )
    }

    #[test]
    fn records_have_named_fields_and_deletions_apply() {
        let table = read(&example()).expect("valid");
        let keys: Vec<_> = table.records().filter_map(|record| record.get("key")?.text()).collect();
        assert_eq!(keys, ["a", "c"]);
        let first = table.records().next().expect("a record");
        let value = first.get("value").expect("a value");
        assert_eq!(value.field("k"), Some(&Term::Integer(-300)));
        assert_eq!(first.get("other"), None);
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error_or_ends_between_items() {
        let file = table_file("t", &["key", "value"], &[vec![bytes("a"), Term::Integer(1)]]);
        let good = (0..file.len()).filter(|&length| read(&file[..length]).is_ok()).count();
        // Behind the head, the header, and the definition.
        assert_eq!(good, 3);
        assert!(read(b"hello").is_err());
    }

    #[test]
    fn a_changed_byte_never_panics() {
        let file = table_file("t", &["key", "value"], &[vec![bytes("a"), Term::Integer(1000)]]);
        for at in 0..file.len() {
            for value in [0, 1, 88, 90, 103, 104, 105, 108, 110, 111, 112, 116, 0x7F, 0xFF] {
                let mut changed = file.clone();
                changed[at] = value;
                let _ = read(&changed);
            }
        }
    }

    #[test]
    fn depth_and_lengths_are_bounded() {
        let mut deep = vec![TERM_VERSION];
        deep.extend([104, 1].repeat(100_000));
        let mut reader = TermReader {
            bytes: &deep,
            at: 0,
            budget: &mut TermBudget::default(),
        };
        assert_eq!(reader.whole(), Err("the terms are nested too deeply"));
        let mut reader = TermReader {
            bytes: &[TERM_VERSION, 105, 0xFF, 0xFF, 0xFF, 0xFF],
            at: 0,
            budget: &mut TermBudget::default(),
        };
        assert_eq!(reader.whole(), Err("the term is cut off"));
    }

    #[test]
    fn all_tables_share_one_budget() {
        let file = table_file("t", &["key", "value"], &[vec![bytes("a"), Term::Integer(1)]]);
        let mut budget = TermBudget::default();
        Table::read("t", &file, &mut budget).expect("valid");
        let terms = TERMS_MAX - budget.left;
        let mut budget = TermBudget { left: 2 * terms - 1 };
        Table::read("t", &file, &mut budget).expect("within the budget");
        let error = Table::read("t", &file, &mut budget).unwrap_err();
        assert!(error.contains(&format!("more than {TERMS_MAX} terms")), "{error}");
    }
}
