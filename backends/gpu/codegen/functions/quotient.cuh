__device__ __forceinline__ int quotient(int number, long long divisor)
{
    return (int)(__umulhi(2u * (unsigned int)number, (unsigned int)divisor) >> (int)(divisor >> 32));
}
