//! Writes archives as EMQX does, independently of the code under test: terms of Erlang, tables as logs, tar, gzip.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A term in Erlang's external format.
#[derive(Clone)]
pub struct Term(Vec<u8>);

fn sized(tag: u8, length: usize) -> Vec<u8> {
    let mut out = vec![tag];
    out.extend(u32::try_from(length).unwrap().to_be_bytes());
    out
}

pub fn atom(name: &str) -> Term {
    let mut out = vec![119, u8::try_from(name.len()).unwrap()];
    out.extend(name.as_bytes());
    Term(out)
}

pub fn bytes(text: &str) -> Term {
    let mut out = sized(109, text.len());
    out.extend(text.as_bytes());
    Term(out)
}

pub fn integer(number: i64) -> Term {
    match u8::try_from(number) {
        Ok(small) => Term(vec![97, small]),
        Err(_) => {
            let mut out = vec![110, 8, u8::from(number < 0)];
            out.extend(number.unsigned_abs().to_le_bytes());
            Term(out)
        }
    }
}

pub fn tuple(items: &[Term]) -> Term {
    let mut out = vec![104, u8::try_from(items.len()).unwrap()];
    items.iter().for_each(|item| out.extend(&item.0));
    Term(out)
}

pub fn list(items: &[Term]) -> Term {
    let mut out = Vec::new();
    if !items.is_empty() {
        out = sized(108, items.len());
        items.iter().for_each(|item| out.extend(&item.0));
    }
    out.push(106);
    Term(out)
}

pub fn map(fields: &[(Term, Term)]) -> Term {
    let mut out = sized(116, fields.len());
    for (key, value) in fields {
        out.extend(&key.0);
        out.extend(&value.0);
    }
    Term(out)
}

pub struct Table {
    pub name: &'static str,
    pub fields: &'static [&'static str],
    /// Without the name of the record.
    pub records: Vec<Vec<Term>>,
}

impl Table {
    fn file(&self) -> Vec<u8> {
        let fields: Vec<Term> = self.fields.iter().map(|field| atom(field)).collect();
        let properties = list(&[tuple(&[atom("attributes"), list(&fields)])]);
        let mut terms = vec![
            tuple(&[atom("log_header"), atom("backup_log"), bytes("1.2")]),
            tuple(&[atom("schema"), atom(self.name), properties]),
        ];
        for record in &self.records {
            terms.push(tuple(&[&[atom(self.name)], record.as_slice()].concat()));
        }
        let mut file = vec![1, 2, 3, 4, 99, 88, 77, 11];
        for term in terms {
            file.extend(u32::try_from(term.0.len() + 1).unwrap().to_be_bytes());
            file.extend(b"bWLA");
            file.push(131);
            file.extend(term.0);
        }
        file
    }
}

pub fn of_emqx(version: &str, config: &str, tables: &[Table]) -> Vec<u8> {
    let meta = format!("edition = ce\nversion = \"{version}\"\n");
    let mut files = vec![
        ("b/META.hocon".to_owned(), meta.into_bytes()),
        ("b/cluster.hocon".to_owned(), config.as_bytes().to_vec()),
    ];
    files.extend(
        tables
            .iter()
            .map(|table| (format!("b/mnesia/{}", table.name), table.file())),
    );
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    of_files(&files)
}

pub fn of_files(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    for (name, contents) in files {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        gzip.write_all(&header).unwrap();
        gzip.write_all(contents).unwrap();
        gzip.write_all(&vec![0; contents.len().next_multiple_of(512) - contents.len()])
            .unwrap();
    }
    gzip.write_all(&[0; 1024]).unwrap();
    gzip.finish().unwrap()
}

/// Returns a persistence file of Mosquitto with one retained message.
pub fn mosquitto_database(topic: &str, payload: &str) -> Vec<u8> {
    let mut file = b"\x00\xB5\x00mosquitto db".to_vec();
    file.extend([0, 0, 0, 0, 0, 0, 0, 6]);
    let mut chunk = |kind: u8, body: &[u8]| {
        file.extend([0, 0, 0, kind]);
        file.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        file.extend(body);
    };
    let id = 7u64.to_le_bytes();
    chunk(1, &[&id[..], &[1, 8], &[0; 6]].concat());
    let mut message = [&id[..], &[0; 8]].concat();
    message.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    // No source, then the length of the topic, no port, QoS 1, retained.
    message.extend([0; 6]);
    message.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
    message.extend([0, 0, 1, 1]);
    message.extend(topic.as_bytes());
    message.extend(payload.as_bytes());
    chunk(2, &message);
    chunk(4, &id);
    file
}
