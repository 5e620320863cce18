//! Fuzzes answers of MongoDB servers. The modules are compiled here, because the crate of the client needs a runtime
//! and TLS.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "modules/mongodb.rs"]
mod mongodb;

use mongodb::bson::BsonDocument;
use mongodb::message::{decode_message, message_length};

fuzz_target!(|bytes: &[u8]| {
    let _ = message_length(bytes);
    let _ = decode_message(bytes);
    if let Ok(document) = BsonDocument::decode(bytes) {
        // A document does not depend on later bytes, and is incomplete without its last one.
        assert!(BsonDocument::decode(&[bytes, b"x"].concat()).is_err());
        assert!(BsonDocument::decode(&bytes[..bytes.len() - 1]).is_err());
        let mut written = Vec::new();
        document.write(&mut written);
        let again = BsonDocument::decode(&written).expect("a written document can be read");
        let mut twice = Vec::new();
        again.write(&mut twice);
        assert_eq!(written, twice);
    }
});
