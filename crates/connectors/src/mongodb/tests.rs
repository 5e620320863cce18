//! Tests of documents and messages, of answers that no client expects, and of the choice of a server. The client is
//! tested with a real server in `tests/database_logins`.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::message::encode_message;
use super::*;

fn encoded(document: &BsonDocument) -> Vec<u8> {
    let mut out = Vec::new();
    document.write(&mut out);
    out
}

fn sample() -> BsonDocument {
    BsonDocument::new()
        .with("d", Bson::Double(-1.5))
        .with("t", "x\0\u{1F511}")
        .with("o", BsonDocument::new().with("$ne", Bson::Null))
        .with("a", vec![Bson::Int32(-1), Bson::Int64(1 << 40), Bson::Bool(true)])
        .with("b", Bson::Binary(vec![0, 0xFF]))
        .with("", false)
}

#[test]
fn documents_have_the_bytes_of_the_standard() {
    // The examples of bsonspec.org.
    assert_eq!(
        encoded(&BsonDocument::new().with("hello", "world")),
        b"\x16\x00\x00\x00\x02hello\x00\x06\x00\x00\x00world\x00\x00"
    );
    let list = vec![Bson::from("awesome"), Bson::Double(5.05), Bson::Int32(1986)];
    assert_eq!(
        encoded(&BsonDocument::new().with("BSON", list)),
        b"\x31\x00\x00\x00\x04BSON\x00\x26\x00\x00\x00\x020\x00\x08\x00\x00\x00awesome\x00\x011\x00\x33\x33\x33\x33\
          \x33\x33\x14\x40\x102\x00\xc2\x07\x00\x00\x00\x00"
    );
    assert_eq!(encoded(&BsonDocument::new()), b"\x05\x00\x00\x00\x00");
    assert_eq!(BsonDocument::decode(&encoded(&sample())), Ok(sample()));
}

#[test]
fn values_of_other_types_are_skipped() {
    let values: [(u8, &[u8]); 12] = [
        (0x06, b""),
        (0x07, &[7; 12]),
        (0x09, &[9; 8]),
        (0x0B, b"^a\0i\0"),
        (0x0C, b"\x02\x00\x00\x00c\x00aaaaaaaaaaaa"),
        (0x0D, b"\x02\x00\x00\x00j\x00"),
        (0x0E, b"\x02\x00\x00\x00s\x00"),
        (0x0F, b"\x0f\x00\x00\x00\x01\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00"),
        (0x11, &[1; 8]),
        (0x13, &[3; 16]),
        (0x7F, b""),
        (0xFF, b""),
    ];
    for (kind, bytes) in values {
        let elements = [&[kind][..], b"v\0", bytes, b"\x10n\x00\x05\x00\x00\x00"].concat();
        let length = (elements.len() + 5) as u32;
        let document = [&length.to_le_bytes()[..], &elements, b"\0"].concat();
        let expected = BsonDocument::new().with("v", Bson::Other(kind)).with("n", 5);
        assert_eq!(BsonDocument::decode(&document), Ok(expected), "{kind:#x}");
    }
}

#[test]
fn malformed_documents_are_errors() {
    let valid = encoded(&sample());
    for end in 0..valid.len() {
        assert!(BsonDocument::decode(&valid[..end]).is_err(), "{end}");
    }
    assert!(BsonDocument::decode(&[&valid[..], b"x"].concat()).is_err());
    // A change of any byte is an error or another document, and never a panic.
    for at in 0..valid.len() {
        for byte in [0, 1, 4, 0x7F, 0x80, 0xFF] {
            let mut changed = valid.clone();
            changed[at] = byte;
            if let Ok(document) = BsonDocument::decode(&changed) {
                assert!(BsonDocument::decode(&encoded(&document)).is_ok());
            }
        }
    }
    for (bytes, reason) in [
        (&b"\x0c\x00\x00\x00\x10a\x00\x01\x00\x00\x00\x01"[..], "no end"),
        (b"\xff\xff\xff\xff\x00", "negative"),
        (b"\x04\x00\x00\x00\x00", "no end"),
        (b"\x09\x00\x00\x00\x08a\x00\x02\x00", "neither true nor false"),
        (b"\x08\x00\x00\x00\x20a\x00\x00", "unknown type"),
        (b"\x0d\x00\x00\x00\x02a\x00\x01\x00\x00\x00x\x00", "no end"),
        (b"\x0e\x00\x00\x00\x02a\x00\x02\x00\x00\x00\xff\x00\x00", "UTF-8"),
    ] {
        let error = BsonDocument::decode(bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let mut deep = BsonDocument::new();
    for _ in 0..200 {
        deep = BsonDocument::new().with("a", deep);
    }
    let error = BsonDocument::decode(&encoded(&deep)).unwrap_err().to_string();
    assert!(error.contains("too deep"), "{error}");
    let nulls = |count: usize| encoded(&BsonDocument::new().with("a", vec![Bson::Null; count]));
    assert!(BsonDocument::decode(&nulls(199_999)).is_ok());
    let error = BsonDocument::decode(&nulls(200_000)).unwrap_err().to_string();
    assert!(error.contains("more than 200,000 values"), "{error}");
}

#[test]
fn messages_are_checked() {
    let message = encode_message(7, &sample());
    assert_eq!(message_length(&message), Ok(Some(message.len())));
    assert_eq!(message_length(&message[..3]), Ok(None));
    assert_eq!(decode_message(&message), Ok((0, sample())));
    let with_checksum = {
        let mut changed = [&message[..], b"abcd"].concat();
        changed[16] = 1;
        changed
    };
    assert_eq!(decode_message(&with_checksum), Ok((0, sample())));
    for (at, byte) in [(12, 1), (16, 2), (17, 1), (20, 1)] {
        let mut changed = message.clone();
        changed[at] = byte;
        assert!(decode_message(&changed).is_err(), "{at}");
    }
    for end in 0..message.len() {
        assert!(decode_message(&message[..end]).is_err(), "{end}");
    }
    for wrong in [
        &b"HTTP/1.1 400"[..],
        b"\x00\x00\x00\x00",
        b"\x10\x00\x00\x00",
        b"\xff\xff\xff\xff",
    ] {
        assert!(message_length(wrong).is_err(), "{wrong:?}");
    }
}

/// A server that answers each command by a function of the command. It ends with the test.
struct Peer {
    address: String,
    is_open: Arc<AtomicBool>,
}

impl Peer {
    fn new(answer: impl Fn(&BsonDocument) -> Vec<u8> + Clone + Send + 'static) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_open = Arc::new(AtomicBool::new(true));
        let open = is_open.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if !open.load(Ordering::Relaxed) {
                    return;
                }
                let answer = answer.clone();
                std::thread::spawn(move || serve(stream, answer));
            }
        });
        Peer { address, is_open }
    }

    /// A server that answers `hello` and finds one document with its own address.
    fn with_role(role: impl Fn() -> BsonDocument + Clone + Send + 'static) -> Peer {
        Peer::new(move |command| {
            let role = role();
            match command.get("find") {
                None => message(role.with("ok", Bson::Double(1.0))),
                Some(_) if role.is_true("secondary") && command.get("$readPreference").is_none() => {
                    message(failure(13435, "NotPrimaryNoSecondaryOk"))
                }
                Some(_) => message(found(vec![
                    BsonDocument::new().with("role", role.text("role").unwrap_or_default()),
                ])),
            }
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.is_open.store(false, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(mut stream: TcpStream, answer: impl Fn(&BsonDocument) -> Vec<u8>) {
    let mut length = [0; 4];
    while stream.read_exact(&mut length).is_ok() {
        let mut rest = vec![0; u32::from_le_bytes(length) as usize - 4];
        if stream.read_exact(&mut rest).is_err() {
            return;
        }
        let request = [&length[..], &rest].concat();
        let (_, command) = decode_message(&request).unwrap();
        let mut answer = answer(&command);
        if let Some(id) = answer.get_mut(8..12) {
            id.copy_from_slice(&request[4..8]);
        }
        if answer.is_empty() || stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn message(document: BsonDocument) -> Vec<u8> {
    encode_message(1, &document)
}

fn failure(code: i32, name: &str) -> BsonDocument {
    BsonDocument::new()
        .with("ok", Bson::Double(0.0))
        .with("code", code)
        .with("codeName", name)
        .with("errmsg", "command { find: \"c\", filter: { password: \"hush\" } }")
}

fn found(documents: Vec<BsonDocument>) -> BsonDocument {
    let batch: Vec<Bson> = documents.into_iter().map(Bson::from).collect();
    let cursor = BsonDocument::new().with("id", 0i64).with("firstBatch", batch);
    BsonDocument::new().with("cursor", cursor).with("ok", 1)
}

fn client(kind: MongoKind, read_mode: MongoReadMode, servers: &[&Peer]) -> MongoClient {
    let config = MongoConnectorConfig {
        kind,
        servers: servers.iter().map(|peer| peer.address.clone()).collect(),
        replica_set: (kind == MongoKind::ReplicaSet).then(|| "rs0".to_owned()),
        read_mode,
        database: "mqtt".to_owned(),
        user: None,
        password: None,
        auth_source: "admin".to_owned(),
        connections_max: 2,
        connect_timeout_ms: 60_000,
        tls: None,
    };
    MongoClient::new(&config)
        .map_err(|problems| problems.join("; "))
        .unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

async fn find(client: &MongoClient) -> Result<Vec<BsonDocument>, MongoError> {
    let find = MongoFind {
        collection: "c".to_owned(),
        projection: BsonDocument::new(),
        sort: BsonDocument::new(),
        limit: 5,
        timeout_ms: 1000,
    };
    client.find(&find, BsonDocument::new()).await
}

/// Returns the role of the server that answers.
async fn role(client: &MongoClient) -> String {
    let found = find(client).await.unwrap();
    found[0].text("role").unwrap().to_owned()
}

fn member(role: &str, name: &str) -> BsonDocument {
    BsonDocument::new().with("role", role).with("setName", name).with(
        if role == "primary" {
            "isWritablePrimary"
        } else {
            "secondary"
        },
        true,
    )
}

#[test]
fn the_primary_of_a_replica_set_is_found() {
    let is_first = Arc::new(AtomicBool::new(true));
    let of = |is_primary: bool| member(if is_primary { "primary" } else { "secondary" }, "rs0");
    let first = is_first.clone();
    let primary = Peer::with_role(move || of(first.load(Ordering::Relaxed)));
    let (first, others) = (is_first.clone(), primary.address.clone());
    let secondary = Peer::with_role(move || {
        let is_primary = !first.load(Ordering::Relaxed);
        let hosts = vec![Bson::from("unreachable:host"), Bson::from(others.as_str())];
        of(is_primary).with("primary", others.as_str()).with("hosts", hosts)
    });
    let arbiter = Peer::with_role(|| BsonDocument::new().with("setName", "rs0").with("arbiterOnly", true));
    run(async {
        // Only a secondary is configured: it knows the primary.
        let client = client(MongoKind::ReplicaSet, MongoReadMode::Primary, &[&arbiter, &secondary]);
        assert_eq!(role(&client).await, "primary");
        assert_eq!(role(&client).await, "primary");
        // The members change their roles, which the client notices on its idle connection.
        is_first.store(false, Ordering::Relaxed);
        assert_eq!(role(&client).await, "primary");
    });
    run(async {
        let any = client(MongoKind::ReplicaSet, MongoReadMode::AnyMember, &[&arbiter, &primary]);
        assert_eq!(role(&any).await, "secondary");
    });
}

#[test]
fn servers_with_another_role_are_not_used() {
    let router = Peer::with_role(|| BsonDocument::new().with("msg", "isdbgrid").with("role", "router"));
    let alone = Peer::with_role(|| {
        BsonDocument::new()
            .with("isWritablePrimary", true)
            .with("role", "alone")
    });
    let other = Peer::with_role(|| member("primary", "rs1"));
    let primary = MongoReadMode::Primary;
    run(async {
        assert_eq!(
            role(&client(MongoKind::Sharded, primary, &[&alone, &router])).await,
            "router"
        );
        assert_eq!(role(&client(MongoKind::Single, primary, &[&alone])).await, "alone");
        for (kind, peer, reason) in [
            (MongoKind::Sharded, &alone, "is no mongos"),
            (MongoKind::ReplicaSet, &alone, "is no member of a replica set"),
            (MongoKind::ReplicaSet, &other, "is a member of the replica set \"rs1\""),
        ] {
            let error = find(&client(kind, primary, &[peer])).await.unwrap_err();
            let MongoError::Lost(text) = &error else {
                panic!("{error:?}");
            };
            assert!(text.contains(reason) && text.contains(&peer.address), "{text}");
        }
    });
}

#[test]
fn old_servers_know_another_greeting() {
    let peer = Peer::new(|command| match (command.get("hello"), command.get("isMaster")) {
        (Some(_), _) => message(failure(59, "CommandNotFound")),
        (None, Some(_)) => message(BsonDocument::new().with("ismaster", true).with("ok", 1)),
        _ => message(found(Vec::new())),
    });
    run(async {
        let client = client(MongoKind::Single, MongoReadMode::Primary, &[&peer]);
        assert_eq!(find(&client).await, Ok(Vec::new()));
    });
}

#[test]
fn answers_that_cannot_be_used_are_errors() {
    let mut too_long = message(BsonDocument::new());
    too_long[..4].copy_from_slice(&(5u32 << 20).to_le_bytes());
    let cursor = |cursor: BsonDocument| message(BsonDocument::new().with("cursor", cursor).with("ok", 1));
    let answers: [(Vec<u8>, &str); 9] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "longer than 4 MiB"),
        (
            b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00".to_vec(),
            "does not speak the protocol",
        ),
        (too_long, "longer than 4 MiB"),
        (message(BsonDocument::new()), "answers with an error (0)"),
        (message(BsonDocument::new().with("ok", 1)), "has no documents"),
        (
            cursor(BsonDocument::new().with("id", 0i64).with("firstBatch", "x")),
            "has no documents",
        ),
        (
            cursor(BsonDocument::new().with("id", 5i64).with("firstBatch", Vec::new())),
            "all documents at once",
        ),
        (
            cursor(
                BsonDocument::new()
                    .with("id", 0i64)
                    .with("firstBatch", vec![Bson::Null]),
            ),
            "something else than documents",
        ),
        (message(failure(2, "BadValue")), "BadValue (2)"),
    ];
    for (answer, reason) in answers {
        let peer = Peer::new(move |command| match command.get("find") {
            None => message(BsonDocument::new().with("ok", 1)),
            Some(_) => answer.clone(),
        });
        let client = client(MongoKind::Single, MongoReadMode::Primary, &[&peer]);
        let error = run(find(&client)).unwrap_err();
        assert!(matches!(error, MongoError::Unusable(_)), "{reason}: {error:?}");
        let text = error.to_string();
        assert!(
            text.contains(reason) && text.contains(&peer.address),
            "{reason}: {text}"
        );
        assert!(!text.contains("hush"), "{text}");
    }
}

#[test]
fn failures_of_a_server_are_no_answers() {
    for (code, name, is_lost) in [
        (13, "Unauthorized", false),
        (50, "MaxTimeMSExpired", false),
        (11600, "InterruptedAtShutdown", true),
    ] {
        let peer = Peer::new(move |command| match command.get("find") {
            None => message(BsonDocument::new().with("ok", 1)),
            Some(_) => message(failure(code, name)),
        });
        let error = run(find(&client(MongoKind::Single, MongoReadMode::Primary, &[&peer]))).unwrap_err();
        assert_eq!(matches!(error, MongoError::Lost(_)), is_lost, "{error:?}");
        assert_eq!(matches!(error, MongoError::Failed(_)), !is_lost, "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let closing = Peer::new(|_| Vec::new());
    let error = run(find(&client(MongoKind::Single, MongoReadMode::Primary, &[&closing]))).unwrap_err();
    assert!(matches!(error, MongoError::Lost(_)), "{error:?}");
}
