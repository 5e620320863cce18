//! Hashes, compression and encodings. What is unpacked is bounded before it is there.

use std::io::Read;

use base64ct::{Base64, Base64Unpadded, Base64Url, Base64UrlUnpadded, Encoding};
use flate2::read::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder, ZlibDecoder, ZlibEncoder};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::json::{self, JsonForm};
use crate::value::Value;

function_table! { Group::Codec;
    "base64_decode" (text: TEXT; option: TEXT, other_option: TEXT) -> TEXT, base64_decode, "From base64; options `'urlsafe'` and `'no_padding'`.", "base64_decode('aGVsbG8=') = 'hello'";
    "base64_encode" (bytes: TEXT; option: TEXT, other_option: TEXT) -> TEXT, base64_encode, "To base64; options `'urlsafe'` and `'no_padding'`.", "base64_encode('hello') = 'aGVsbG8='";
    "bin2hexstr" (bytes: TEXT; prefix: TEXT) -> TEXT, bin2hexstr, "To hexadecimal digits, upper case, behind a prefix.", "bin2hexstr('abc', '0x') = '0x616263'";
    "gunzip" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, GzDecoder::new(bytes)) }, "From gzip.", "gunzip(hexstr2bin('1F8B0800000000000013CB48CDC9C9070086A6103605000000')) = 'hello'";
    "gzip" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, gzip(bytes)) }, "To gzip.", "gunzip(gzip('hello')) = 'hello'";
    "hash" (algorithm: TEXT, bytes: TEXT) -> TEXT, |c| { let name = c.str(0)?; hash(c, name, 1) }, "Hash in hexadecimal digits, by `'md5'`, `'sha'`, `'sha224'`, `'sha256'`, `'sha384'` or `'sha512'`.", "hash('md5', 'hello') = '5d41402abc4b2a76b9719d911017c592'";
    "hexstr2bin" (text: TEXT; prefix: TEXT) -> TEXT, hexstr2bin, "From hexadecimal digits behind a prefix.", "hexstr2bin('0x616263', '0x') = 'abc'";
    "json_decode" (text: TEXT) -> ANY, |c| { let text = c.text(0)?; c.decode_json(text) }, "From JSON.", "map_get('a', json_decode('{\"a\": 1}')) = 1";
    "json_encode" (value: ANY) -> TEXT, json_encode, "To JSON, with keys in order.", "json_encode([1,2,3]) = '[1,2,3]'";
    "md5" (bytes: TEXT) -> TEXT, |c| hash(c, "md5", 0), "MD5 in hexadecimal digits.", "md5('hello') = '5d41402abc4b2a76b9719d911017c592'";
    "sha" (bytes: TEXT) -> TEXT, |c| hash(c, "sha", 0), "SHA-1 in hexadecimal digits.", "sha('hello') = 'aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d'";
    "sha256" (bytes: TEXT) -> TEXT, |c| hash(c, "sha256", 0), "SHA-256 in hexadecimal digits.", "sha256('hello') = '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824'";
    "sqlserver_bin2hexstr" (bytes: TEXT) -> TEXT, |c| { let text = format!("0x{}", hex(c.text(0)?, b"0123456789ABCDEF")); c.make(text) }, "To hexadecimal digits as SQL Server writes binary values.", "sqlserver_bin2hexstr('abc') = '0x616263'";
    "unzip" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, DeflateDecoder::new(bytes)) }, "From DEFLATE without header.", "unzip(hexstr2bin('CB48CDC9C90700')) = 'hello'";
    "zip" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, DeflateEncoder::new(bytes, Compression::default())) }, "To DEFLATE without header.", "bin2hexstr(zip('hello')) = 'CB48CDC9C90700'";
    "zip_compress" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, ZlibEncoder::new(bytes, Compression::default())) }, "To DEFLATE with a zlib header.", "bin2hexstr(zip_compress('hello')) = '789CCB48CDC9C90700062C0215'";
    "zip_uncompress" (bytes: TEXT) -> TEXT, |c| { let bytes = c.text(0)?; unpack(c, ZlibDecoder::new(bytes)) }, "From DEFLATE with a zlib header.", "zip_uncompress(hexstr2bin('789CCB48CDC9C90700062C0215')) = 'hello'";
}

pub(super) fn hex(bytes: &[u8], digits: &[u8; 16]) -> String {
    let pairs = bytes
        .iter()
        .flat_map(|byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
    pairs.map(char::from).collect()
}

fn hash(call: &mut Call<'_, '_>, algorithm: &str, index: usize) -> Result<Value, Fault> {
    let bytes = call.text(index)?;
    call.run.budget.step(bytes.len() as u64 / 16)?;
    let digest = match algorithm {
        "md5" => md5::Md5::digest(bytes).to_vec(),
        "sha" | "sha1" => sha1::Sha1::digest(bytes).to_vec(),
        "sha224" => Sha224::digest(bytes).to_vec(),
        "sha256" => Sha256::digest(bytes).to_vec(),
        "sha384" => Sha384::digest(bytes).to_vec(),
        "sha512" => Sha512::digest(bytes).to_vec(),
        other => {
            let expected = "'md5', 'sha', 'sha224', 'sha256', 'sha384' or 'sha512'";
            return Err(call.fault(0, &format!("'{other}'"), expected));
        }
    };
    call.make(hex(&digest, b"0123456789abcdef"))
}

/// Packs or unpacks: whatever the reader gives, up to the bytes that may be made.
fn unpack(call: &mut Call<'_, '_>, mut reader: impl Read) -> Result<Value, Fault> {
    call.run.budget.step(call.text(0)?.len() as u64 / 4)?;
    let mut out = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return Ok(Value::Text(out.into())),
            Ok(count) => {
                call.run.budget.make(count)?;
                call.run.budget.step(count as u64 / 16)?;
                out.extend_from_slice(&chunk[..count]);
            }
            Err(error) => {
                return Err(call.fault(
                    0,
                    &format!("not what {} reads ({error})", call.function.name),
                    "packed bytes",
                ));
            }
        }
    }
}

/// Without name and time, and from Unix whatever this machine is: the same bytes everywhere.
fn gzip(bytes: &[u8]) -> GzEncoder<&[u8]> {
    GzBuilder::new().operating_system(3).read(bytes, Compression::default())
}

fn hexstr2bin(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let text = call.text(0)?;
    let prefix = if call.has(1) { call.text(1)? } else { b"" };
    let digits = text
        .strip_prefix(prefix)
        .ok_or_else(|| call.fault(0, "without the prefix", "one with the prefix"))?;
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|nibble| nibble as u8);
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?))
        .collect();
    match bytes {
        Some(bytes) if rest.is_empty() => call.make(bytes),
        _ => Err(call.fault(0, "no hexadecimal string", "pairs of hexadecimal digits")),
    }
}

fn bin2hexstr(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let prefix = if call.has(1) { call.text(1)? } else { b"" };
    let digits = hex(call.text(0)?, b"0123456789ABCDEF");
    call.make([prefix, digits.as_bytes()].concat())
}

fn json_encode(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    call.run.budget.make(call.value(0).size())?;
    let text = json::encode(call.value(0), JsonForm::default());
    call.make(text)
}

/// URL-safe, without padding.
fn base64_options(call: &Call<'_, '_>) -> Result<(bool, bool), Fault> {
    let mut options = (false, false);
    for index in 1..call.arguments.len() {
        match call.str(index)? {
            "urlsafe" => options.0 = true,
            "no_padding" => options.1 = true,
            other => return Err(call.fault(index, &format!("'{other}'"), "'urlsafe' or 'no_padding'")),
        }
    }
    Ok(options)
}

fn base64_encode(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let bytes = call.text(0)?;
    let text = match base64_options(call)? {
        (false, false) => Base64::encode_string(bytes),
        (false, true) => Base64Unpadded::encode_string(bytes),
        (true, false) => Base64Url::encode_string(bytes),
        (true, true) => Base64UrlUnpadded::encode_string(bytes),
    };
    call.make(text)
}

fn base64_decode(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let text: String = call.str(0)?.split_ascii_whitespace().collect();
    let decoded = match base64_options(call)? {
        (false, false) => Base64::decode_vec(&text),
        (false, true) => Base64Unpadded::decode_vec(text.trim_end_matches('=')),
        (true, false) => Base64Url::decode_vec(&text),
        (true, true) => Base64UrlUnpadded::decode_vec(text.trim_end_matches('=')),
    };
    match decoded {
        Ok(bytes) => call.make(bytes),
        Err(_) => Err(call.fault(
            0,
            "no base64",
            "base64 with its padding, or the options 'urlsafe' and 'no_padding'",
        )),
    }
}
