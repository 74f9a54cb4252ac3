package nft

import (
	"encoding/binary"
	"math/bits"
)

// jhash is the kernel's hash of Bob Jenkins (include/linux/jhash.h), written anew: lookup3, whose words are in the order of the machine.
func jhash(key []byte, initval uint32) uint32 {
	const magic = 0xdeadbeef
	a := magic + uint32(len(key)) + initval
	b, c := a, a
	word := binary.NativeEndian.Uint32
	for len(key) > 12 {
		a, b, c = mixWords(a+word(key), b+word(key[4:]), c+word(key[8:]))
		key = key[12:]
	}
	if len(key) == 0 {
		return c
	}
	// Bytes that are missing count as zeros, in the order of little-endian words whatever the machine's.
	var rest [12]byte
	copy(rest[:], key)
	last := binary.LittleEndian.Uint32
	return final(a+last(rest[:]), b+last(rest[4:]), c+last(rest[8:]))
}

func mixWords(a, b, c uint32) (uint32, uint32, uint32) {
	a = (a - c) ^ bits.RotateLeft32(c, 4)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 6)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 8)
	b += a
	a = (a - c) ^ bits.RotateLeft32(c, 16)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 19)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	c = (c ^ b) - bits.RotateLeft32(b, 24)
	return c
}

// slotOf is the slot of a key (nft_hash.c): the hash is scaled to the number of slots.
func slotOf(key []byte, seed, slots uint32) uint32 {
	return uint32(uint64(jhash(key, seed)) * uint64(slots) >> 32)
}
