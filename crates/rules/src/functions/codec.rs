//! Hashes, compression and encodings. Decompressed output is limited before it is allocated.

use std::io::{self, Read, Write};

use base64ct::{Base64, Base64Unpadded, Base64Url, Base64UrlUnpadded, Encoding};
use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use flate2::{Compression, GzBuilder};
use rule_values::{FunctionError, Value, json::JsonForm};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use super::{FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::Codec;
    "base64_decode" (text: TEXT; option: TEXT, other_option: TEXT) -> TEXT, base64_decode, "Bytes decoded from base64; options `'urlsafe'` and `'no_padding'`.", "base64_decode('aGVsbG8=') = 'hello'";
    "base64_encode" (bytes: TEXT; option: TEXT, other_option: TEXT) -> TEXT, base64_encode, "Bytes encoded as base64; options `'urlsafe'` and `'no_padding'`.", "base64_encode('hello') = 'aGVsbG8='";
    "bin2hexstr" (bytes: TEXT; prefix: TEXT) -> TEXT, bin2hexstr, "Bytes encoded as hexadecimal digits in upper case, after an optional prefix.", "bin2hexstr('abc', '0x') = '0x616263'";
    "gunzip" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, GzDecoder::new(bytes)) }, "Bytes decompressed from gzip.", "gunzip(hexstr2bin('1F8B0800000000000013CB48CDC9C9070086A6103605000000')) = 'hello'";
    "gzip" (bytes: TEXT) -> TEXT, |c| pack(c, gzip()), "Bytes compressed as gzip.", "gunzip(gzip('hello')) = 'hello'";
    "hash" (algorithm: TEXT, bytes: TEXT) -> TEXT, |c| { let name = c.str(0)?; hash(c, name, 1) }, "The hash in hexadecimal digits, with `'md5'`, `'sha'`, `'sha224'`, `'sha256'`, `'sha384'` or `'sha512'`.", "hash('md5', 'hello') = '5d41402abc4b2a76b9719d911017c592'";
    "hexstr2bin" (text: TEXT; prefix: TEXT) -> TEXT, hexstr2bin, "Bytes decoded from hexadecimal digits after an optional prefix.", "hexstr2bin('0x616263', '0x') = 'abc'";
    "json_decode" (text: TEXT) -> ANY, |c| { let text = c.text(0)?; c.decode_json(text) }, "The value of a JSON text.", "map_get('a', json_decode('{\"a\": 1}')) = 1";
    "json_encode" (value: ANY) -> TEXT, json_encode, "The value as JSON, with sorted keys.", "json_encode([1,2,3]) = '[1,2,3]'";
    "md5" (bytes: TEXT) -> TEXT, |c| hash(c, "md5", 0), "The MD5 hash in hexadecimal digits.", "md5('hello') = '5d41402abc4b2a76b9719d911017c592'";
    "sha" (bytes: TEXT) -> TEXT, |c| hash(c, "sha", 0), "The SHA-1 hash in hexadecimal digits.", "sha('hello') = 'aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d'";
    "sha256" (bytes: TEXT) -> TEXT, |c| hash(c, "sha256", 0), "The SHA-256 hash in hexadecimal digits.", "sha256('hello') = '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824'";
    "sqlserver_bin2hexstr" (bytes: TEXT) -> TEXT, |c| { let text = format!("0x{}", hex(c.text(0)?, b"0123456789ABCDEF")); c.make(text) }, "Bytes encoded as a binary literal of SQL Server.", "sqlserver_bin2hexstr('abc') = '0x616263'";
    "unzip" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, DeflateDecoder::new(bytes)) }, "Bytes decompressed from DEFLATE without header.", "unzip(hexstr2bin('CB48CDC9C90700')) = 'hello'";
    "zip" (bytes: TEXT) -> TEXT, |c| pack(c, DeflateEncoder::new(Vec::new(), Compression::default())), "Bytes compressed as DEFLATE without header.", "bin2hexstr(zip('hello')) = 'CB48CDC9C90700'";
    "zip_compress" (bytes: TEXT) -> TEXT, |c| pack(c, ZlibEncoder::new(Vec::new(), Compression::default())), "Bytes compressed as DEFLATE with a zlib header.", "bin2hexstr(zip_compress('hello')) = '789CCB48CDC9C90700062C0215'";
    "zip_uncompress" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, ZlibDecoder::new(bytes)) }, "Bytes decompressed from DEFLATE with a zlib header.", "zip_uncompress(hexstr2bin('789CCB48CDC9C90700062C0215')) = 'hello'";
}

pub(super) fn hex(bytes: &[u8], digits: &[u8; 16]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        out.push(digits[usize::from(byte >> 4)].into());
        out.push(digits[usize::from(byte & 15)].into());
    }
    out
}

fn hash(call: &mut FunctionCall<'_, '_>, algorithm: &str, index: usize) -> Result<Value, FunctionError> {
    let bytes = call.text(index)?;
    call.run.budget.charge_steps(bytes.len() as u64 / 8)?;
    let digest = match algorithm {
        "md5" => md5::Md5::digest(bytes).to_vec(),
        "sha" | "sha1" => sha1::Sha1::digest(bytes).to_vec(),
        "sha224" => Sha224::digest(bytes).to_vec(),
        "sha256" => Sha256::digest(bytes).to_vec(),
        "sha384" => Sha384::digest(bytes).to_vec(),
        "sha512" => Sha512::digest(bytes).to_vec(),
        other => {
            let expected = "'md5', 'sha', 'sha224', 'sha256', 'sha384' or 'sha512'";
            return Err(call.type_error(0, &format!("'{other}'"), expected));
        }
    };
    call.make(hex(&digest, b"0123456789abcdef"))
}

/// Decompresses everything from the reader, up to the byte limit.
fn unpack(call: &mut FunctionCall<'_, '_>, mut reader: impl Read) -> Result<Value, FunctionError> {
    call.run.budget.charge_steps(call.text(0)?.len() as u64 / 4)?;
    let mut out = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return Ok(Value::Text(out.into())),
            Ok(count) => {
                call.run.budget.make(count)?;
                call.run.budget.charge_steps(count as u64 / 16)?;
                out.extend_from_slice(&chunk[..count]);
            }
            Err(error) => {
                return Err(call.type_error(
                    0,
                    &format!("bytes that {} cannot decompress ({error})", call.function.name),
                    "compressed bytes",
                ));
            }
        }
    }
}

/// The header has no name and no time, and always names Unix, so that the output is the same on every machine.
fn gzip() -> GzEncoder<Vec<u8>> {
    GzBuilder::new()
        .operating_system(3)
        .write(Vec::new(), Compression::default())
}

/// A compressor that writes into memory.
trait Packer: Write {
    fn finish(self) -> io::Result<Vec<u8>>;
}

macro_rules! packers {
    ($($encoder:ident)*) => {$(
        impl Packer for $encoder<Vec<u8>> {
            fn finish(self) -> io::Result<Vec<u8>> {
                $encoder::finish(self)
            }
        }
    )*};
}

packers! { DeflateEncoder GzEncoder ZlibEncoder }

/// Compresses in pieces, because the budget can be exhausted after each piece. The output is at most a few bytes larger
/// than the input.
fn pack(call: &mut FunctionCall<'_, '_>, mut packer: impl Packer) -> Result<Value, FunctionError> {
    let bytes = call.text(0)?;
    let failed = |_| FunctionError::from("the bytes cannot be compressed");
    for piece in bytes.chunks(4096) {
        call.run.budget.charge_steps(piece.len() as u64 / 8)?;
        packer.write_all(piece).map_err(failed)?;
    }
    // Cost of initializing the compressor's tables.
    call.run.budget.charge_steps(1024)?;
    let packed = packer.finish().map_err(failed)?;
    call.make(packed)
}

fn hexstr2bin(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text = call.text(0)?;
    let prefix = if call.has(1) { call.text(1)? } else { b"" };
    let digits = text
        .strip_prefix(prefix)
        .ok_or_else(|| call.type_error(0, "a string without the prefix", "a string with the prefix"))?;
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|nibble| nibble as u8);
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?))
        .collect();
    match bytes {
        Some(bytes) if rest.is_empty() => call.make(bytes),
        _ => Err(call.type_error(0, "a string that is not hexadecimal", "pairs of hexadecimal digits")),
    }
}

fn bin2hexstr(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let prefix = if call.has(1) { call.text(1)? } else { b"" };
    let digits = hex(call.text(0)?, b"0123456789ABCDEF");
    call.make([prefix, digits.as_bytes()].concat())
}

fn json_encode(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text = call.encode_json(call.value(0), JsonForm::default())?;
    call.make(text)
}

/// Returns whether to use the URL-safe alphabet and whether to omit padding.
fn base64_options(call: &FunctionCall<'_, '_>) -> Result<(bool, bool), FunctionError> {
    let mut options = (false, false);
    for index in 1..call.arguments.len() {
        match call.str(index)? {
            "urlsafe" => options.0 = true,
            "no_padding" => options.1 = true,
            other => return Err(call.type_error(index, &format!("'{other}'"), "'urlsafe' or 'no_padding'")),
        }
    }
    Ok(options)
}

fn base64_encode(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let bytes = call.text(0)?;
    let text = match base64_options(call)? {
        (false, false) => Base64::encode_string(bytes),
        (false, true) => Base64Unpadded::encode_string(bytes),
        (true, false) => Base64Url::encode_string(bytes),
        (true, true) => Base64UrlUnpadded::encode_string(bytes),
    };
    call.make(text)
}

fn base64_decode(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let text: String = call.str(0)?.split_ascii_whitespace().collect();
    let decoded = match base64_options(call)? {
        (false, false) => Base64::decode_vec(&text),
        (false, true) => Base64Unpadded::decode_vec(text.trim_end_matches('=')),
        (true, false) => Base64Url::decode_vec(&text),
        (true, true) => Base64UrlUnpadded::decode_vec(text.trim_end_matches('=')),
    };
    match decoded {
        Ok(bytes) => call.make(bytes),
        Err(_) => Err(call.type_error(
            0,
            "not base64",
            "base64 with its padding, or the options 'urlsafe' and 'no_padding'",
        )),
    }
}
