//! Parses the persistence file of Mosquitto, versions 5 and 6, without interpreting it.
//!
//! ```text
//! file      := magic [15], crc u32 (always 0), version u32, chunks
//! chunk     := kind u32, bytes u32, fixed part, texts
//! 1 config       last id (8), shutdown u8, size of ids u8, padding
//! 2 message      id, expires i64 (s), payload bytes u32, source packet id, source id, source user name,
//!                topic bytes u16 each, source port u16, qos u8, retain u8
//!                | source id, source user name, topic, payload, properties
//! 3 in a session message id, packet id u16, client id bytes u16, qos u8, state u8, retain << 4 | dup, direction u8
//!                | client id, properties
//! 4 retained     message id
//! 5 subscription identifier u32, client id bytes u16, filter bytes u16, qos u8, options u8, padding
//!                | client id, filter
//! 6 client       expires i64 (s), expiry interval u32, last packet id u16, client id bytes u16,
//!                [version 6: port u16, user name bytes u16, padding 4] | client id, user name
//! properties     := length (Variable Byte Integer), bytes; or nothing
//! ```
//! Integers are big-endian, except those of 8 bytes. They have the byte order of the machine; little-endian is assumed.
//! Fixed parts are C structs.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8; 15] = b"\x00\xB5\x00mosquitto db";
const ID_BYTES: u8 = 8;

const CONFIG: u32 = 1;
const MESSAGE: u32 = 2;
const QUEUED: u32 = 3;
const RETAINED: u32 = 4;
const SUBSCRIPTION: u32 = 5;
const CLIENT: u32 = 6;

/// Names a message in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreId(pub u64);

/// All of it, in the order of the file.
#[derive(Debug, Default)]
pub struct Database<'a> {
    pub messages: Vec<StoredMessage<'a>>,
    pub clients: Vec<MosquittoClient<'a>>,
    pub queued: Vec<MosquittoQueued<'a>>,
    pub subscriptions: Vec<MosquittoSubscription<'a>>,
    pub retained: Vec<StoreId>,
}

#[derive(Debug)]
pub struct StoredMessage<'a> {
    pub id: StoreId,
    /// Unix seconds; 0 is never.
    pub expires_unix_s: i64,
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// Without their length.
    pub properties: &'a [u8],
    pub qos: u8,
    pub retain: bool,
}

#[derive(Debug)]
pub struct MosquittoClient<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    /// Unix seconds; 0 is never.
    pub expires_unix_s: i64,
    pub expiry_s: u32,
}

/// A message of a session: received from its client, or to be sent to it.
#[derive(Debug)]
pub struct MosquittoQueued<'a> {
    pub client_id: &'a str,
    pub message: StoreId,
    /// 0: none yet.
    pub packet_id: u16,
    pub qos: u8,
    pub retain: bool,
    pub state: MosquittoState,
    pub is_incoming: bool,
    /// Subscription identifiers, as properties without their length.
    pub properties: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MosquittoState {
    /// Not yet sent.
    Queued,
    /// Sent and not answered, or received and not released.
    Underway,
    /// PUBREC has come: only PUBREL and PUBCOMP are left.
    Released,
}

#[derive(Debug)]
pub struct MosquittoSubscription<'a> {
    pub client_id: &'a str,
    pub filter: &'a str,
    /// The Subscription Options of SUBSCRIBE.
    pub options: u8,
    /// 0: none.
    pub identifier: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotADatabase {
    Magic,
    Version(u32),
    IdBytes(u8),
    Chunk { offset: usize, expected: &'static str },
}

impl fmt::Display for NotADatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotADatabase::Magic => f.write_str("this is not a persistence file of Mosquitto"),
            NotADatabase::Version(version) => write!(
                f,
                "the persistence file has version {version}; supported are 5 and 6: let Mosquitto 1.6 or later rewrite it"
            ),
            NotADatabase::IdBytes(bytes) => write!(f, "messages have ids of {bytes} bytes instead of {ID_BYTES}"),
            NotADatabase::Chunk { offset, expected } => write!(f, "offset {offset}: expected {expected}"),
        }
    }
}

impl std::error::Error for NotADatabase {}

impl<'a> Database<'a> {
    /// Returns whether a file is a persistence file. One that cannot be read counts as such.
    pub fn is_named(path: &Path) -> bool {
        let mut magic = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut magic));
        read.is_err() || magic == MAGIC
    }

    pub fn read(bytes: &'a [u8]) -> Result<Database<'a>, NotADatabase> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(NotADatabase::Magic)?;
        let mut reader = DatabaseReader {
            bytes: rest,
            offset: MAGIC.len(),
        };
        reader.u32()?;
        let version = reader.u32()?;
        if !matches!(version, 5 | 6) {
            return Err(NotADatabase::Version(version));
        }
        let mut database = Database::default();
        while !reader.bytes.is_empty() {
            let (kind, length) = (reader.u32()?, reader.u32()?);
            let offset = reader.offset;
            let chunk = DatabaseReader {
                bytes: reader.take(length as usize)?,
                offset,
            };
            database.add(kind, chunk, version)?;
        }
        Ok(database)
    }

    fn add(&mut self, kind: u32, mut chunk: DatabaseReader<'a>, version: u32) -> Result<(), NotADatabase> {
        match kind {
            CONFIG => return chunk.config(),
            MESSAGE => self.messages.push(chunk.message()?),
            QUEUED => self.queued.push(chunk.queued()?),
            RETAINED => self.retained.push(chunk.id()?),
            SUBSCRIPTION => self.subscriptions.push(chunk.subscription()?),
            CLIENT => self.clients.push(chunk.client(version)?),
            // Mosquitto skips unknown chunks as well.
            _ => {}
        }
        Ok(())
    }
}

struct DatabaseReader<'a> {
    bytes: &'a [u8],
    /// In the file.
    offset: usize,
}

impl<'a> DatabaseReader<'a> {
    fn error(&self, expected: &'static str) -> NotADatabase {
        NotADatabase::Chunk {
            offset: self.offset,
            expected,
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], NotADatabase> {
        let taken = self.bytes.split_at_checked(length);
        let (taken, rest) = taken.ok_or_else(|| self.error("more bytes: the file has been cut off"))?;
        self.bytes = rest;
        self.offset += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NotADatabase> {
        let taken = self.take(N)?;
        Ok(*taken.first_chunk().expect("as many bytes as asked for"))
    }

    fn u8(&mut self) -> Result<u8, NotADatabase> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, NotADatabase> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, NotADatabase> {
        self.array().map(u32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, NotADatabase> {
        self.array().map(i64::from_le_bytes)
    }

    fn id(&mut self) -> Result<StoreId, NotADatabase> {
        self.array().map(u64::from_le_bytes).map(StoreId)
    }

    fn text(&mut self, length: u16) -> Result<&'a str, NotADatabase> {
        let error = self.error("UTF-8");
        std::str::from_utf8(self.take(usize::from(length))?).map_err(|_| error)
    }

    fn qos(&mut self) -> Result<u8, NotADatabase> {
        match self.u8()? {
            qos @ 0..=2 => Ok(qos),
            _ => Err(self.error("a QoS of 0, 1 or 2")),
        }
    }

    /// The rest of the chunk.
    fn properties(&mut self) -> Result<&'a [u8], NotADatabase> {
        if self.bytes.is_empty() {
            return Ok(&[]);
        }
        let mut length = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8()?;
            length |= usize::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return self.take(length);
            }
        }
        Err(self.error("a Variable Byte Integer"))
    }

    fn config(&mut self) -> Result<(), NotADatabase> {
        self.id()?;
        self.u8()?;
        match self.u8()? {
            ID_BYTES => Ok(()),
            other => Err(NotADatabase::IdBytes(other)),
        }
    }

    fn message(&mut self) -> Result<StoredMessage<'a>, NotADatabase> {
        let (id, expires_unix_s) = (self.id()?, self.i64()?);
        let payload_bytes = self.u32()?;
        let _source_packet_id = self.u16()?;
        let (source_id_bytes, user_name_bytes, topic_bytes) = (self.u16()?, self.u16()?, self.u16()?);
        let _source_port = self.u16()?;
        let (qos, retain) = (self.qos()?, self.u8()? != 0);
        self.take(usize::from(source_id_bytes))?;
        self.take(usize::from(user_name_bytes))?;
        Ok(StoredMessage {
            id,
            expires_unix_s,
            topic: self.text(topic_bytes)?,
            payload: self.take(payload_bytes as usize)?,
            properties: self.properties()?,
            qos,
            retain,
        })
    }

    fn queued(&mut self) -> Result<MosquittoQueued<'a>, NotADatabase> {
        let message = self.id()?;
        let (packet_id, client_id_bytes) = (self.u16()?, self.u16()?);
        let (qos, state) = (self.qos()?, self.state()?);
        let (retain_dup, direction) = (self.u8()?, self.u8()?);
        Ok(MosquittoQueued {
            client_id: self.text(client_id_bytes)?,
            message,
            packet_id,
            qos,
            retain: retain_dup & 0xF0 != 0,
            state,
            is_incoming: direction == 0,
            properties: self.properties()?,
        })
    }

    /// 1, 2, 4: to be sent; 3, 5: waits for PUBACK, PUBREC; 6, 9: PUBREL sent; 7, 8, 10: incoming; 11: queued.
    fn state(&mut self) -> Result<MosquittoState, NotADatabase> {
        match self.u8()? {
            2..=5 | 7 | 8 | 10 => Ok(MosquittoState::Underway),
            6 | 9 => Ok(MosquittoState::Released),
            1 | 11 => Ok(MosquittoState::Queued),
            _ => Err(self.error("a state from 1 to 11")),
        }
    }

    fn subscription(&mut self) -> Result<MosquittoSubscription<'a>, NotADatabase> {
        let identifier = self.u32()?;
        let (client_id_bytes, filter_bytes) = (self.u16()?, self.u16()?);
        let (qos, options) = (self.qos()?, self.u8()?);
        self.take(2)?;
        Ok(MosquittoSubscription {
            client_id: self.text(client_id_bytes)?,
            filter: self.text(filter_bytes)?,
            options: options & 0xFC | qos,
            identifier,
        })
    }

    fn client(&mut self, version: u32) -> Result<MosquittoClient<'a>, NotADatabase> {
        let (expires_unix_s, expiry_s) = (self.i64()?, self.u32()?);
        let _last_packet_id = self.u16()?;
        let client_id_bytes = self.u16()?;
        let user_name_bytes = match version {
            5 => 0,
            _ => {
                let _port = self.u16()?;
                let bytes = self.u16()?;
                self.take(4)?;
                bytes
            }
        };
        Ok(MosquittoClient {
            client_id: self.text(client_id_bytes)?,
            user_name: match user_name_bytes {
                0 => None,
                bytes => Some(self.text(bytes)?),
            },
            expires_unix_s,
            expiry_s,
        })
    }
}
